"""llama.cpp's own HTTP server, out of PyPI's xllamacpp: MODEL PORT [FOLDER for saved slots]."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_ctx = 2048
params.n_parallel = 2
params.warmup = False
params.endpoint_metrics = True
params.endpoint_slots = True
if len(sys.argv) > 3:
    params.slot_save_path = sys.argv[3].rstrip("/") + "/"
# Several of these run beside each other in the tests, and idle threads of one spin.
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.sigwait([signal.SIGTERM, signal.SIGINT])
