//! KV on a device against KV in memory, and what the network refuses.

use super::exit::Exit;
use super::layer::KvShape;
use super::recurrent::RecurrentShape;
use super::*;
use crate::network::state::to_bytes;
use crate::network::{Network, Stream};
use std::ops::ControlFlow;
use std::path::Path;

const SHAPE: KvShape = KvShape {
    kv_heads: 2,
    head_dim: 3,
};

fn network(name: &str) -> Network {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/oracle");
    let model = crate::load_model(&folder.join(name)).unwrap();
    model.network
}

/// Each value tells its head, token and place.
fn values(tokens: Range<usize>) -> Vec<f32> {
    let of_head = |head: usize| {
        let of_token =
            move |token: usize| (0..SHAPE.head_dim).map(move |i| (head * 10_000 + token * 10 + i) as f32);
        tokens.clone().flat_map(of_token)
    };
    (0..2 * SHAPE.kv_heads).flat_map(of_head).collect()
}

fn bytes(tokens: Range<usize>) -> bytes::Bytes {
    to_bytes([values(tokens).as_slice()])
}

fn tensor(tokens: Range<usize>) -> Tensor {
    let shape = (2 * SHAPE.kv_heads, tokens.len(), SHAPE.head_dim);
    Tensor::from_vec(values(tokens), shape, &Device::Cpu).unwrap()
}

fn empty() -> TensorKv {
    TensorKv::new(Device::Cpu, SHAPE)
}

#[test]
fn pieces_are_the_same_from_memory_from_the_device_and_across_both() {
    let mut kv = empty();
    kv.restore(0, &bytes(0..64));
    kv.restore(64, &bytes(64..100));
    assert_eq!((kv.tokens(), kv.bytes()), (100, 100 * 12 * 4));
    assert!(kv.holds(&(64..100)) && !kv.holds(&(64..101)));
    let cuts = [0..64, 64..100, 10..20, 60..70, 0..100];
    for cut in cuts.clone() {
        assert_eq!(kv.piece(cut.clone()).unwrap(), bytes(cut));
    }
    // Beyond the first room, which grows with what was there.
    kv.append(&tensor(100..101)).unwrap();
    kv.append(&tensor(101..200)).unwrap();
    for cut in cuts.into_iter().chain([90..150, 0..200]) {
        assert_eq!(kv.piece(cut.clone()).unwrap(), bytes(cut));
    }
    kv.restore(200, &bytes(200..210));
    assert_eq!(kv.piece(195..205).unwrap(), bytes(195..205));
    let (keys, values) = kv.keys_values().unwrap();
    assert_eq!((keys.dims(), values.dims()), (&[2, 200, 3][..], &[2, 200, 3][..]));
}

#[test]
fn a_piece_that_leaves_a_hole_is_refused_when_it_would_be_computed_with() {
    for (start, piece) in [(64, bytes(64..70)), (0, bytes(0..70).slice(..70 * 12 * 4 - 4))] {
        let mut kv = empty();
        kv.restore(start, &piece);
        let refused = kv.append(&tensor(70..71)).unwrap_err().to_string();
        assert!(refused.contains("token 0 comes next"), "{refused}");
    }
}

#[test]
fn what_is_on_its_way_is_what_was_computed_and_later_tokens_do_not_change_it() {
    let mut kv = empty();
    kv.append(&tensor(0..64)).unwrap();
    kv.begin_to_leave(0..64, &Exit::Read).unwrap();
    let early = kv.piece(0..64).unwrap();
    kv.has_left();
    kv.append(&tensor(64..65)).unwrap();
    assert_eq!((early, kv.piece(0..64).unwrap()), (bytes(0..64), bytes(0..64)));
}

#[test]
fn layers_are_seen_in_order_each_with_its_kv_and_stop_the_pass() {
    let network = network("tiny-qwen3").on(ComputeDevice::CpuTensors).unwrap();
    let mut state = network.fresh_state();
    let mut seen = Vec::new();
    let mut watch = |layer: usize, state: &LayerState| {
        let LayerState::Attention(kv) = state else {
            panic!("attention only")
        };
        seen.push((layer, kv.piece(0..5).unwrap().len()));
        ControlFlow::Continue(())
    };
    network.run(&[1, 2, 3, 4, 5], &mut state, &mut watch).unwrap();
    let bytes = 5 * 2 * 2 * 32 * 4;
    assert_eq!(seen, [(0, bytes), (1, bytes), (2, bytes), (3, bytes)]);
    assert_eq!(state.tokens, 5);
    let mut stop = |layer: usize, _: &LayerState| match layer {
        1 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = network.run(&[6], &mut state, &mut stop);
    assert!(matches!(stopped, Err(ForwardError::Cancelled)));
}

#[test]
fn a_state_or_a_stream_of_the_other_kind_is_an_error_and_no_panic() {
    let host = network("tiny-qwen3");
    let tensors = host.on(ComputeDevice::CpuTensors).unwrap();
    let mut watch = |_: usize, _: &LayerState| ControlFlow::Continue(());
    for (network, other) in [(&host, &tensors), (&tensors, &host)] {
        let mut state = other.fresh_state();
        let refused = network.run(&[1], &mut state, &mut watch);
        assert!(matches!(refused, Err(ForwardError::State(0))));
        let stream: Stream = other.run(&[1], &mut other.fresh_state(), &mut watch).unwrap();
        assert!(network.logits(&stream).is_err());
    }
}

#[test]
fn a_network_is_brought_to_a_device_once() {
    let moved = network("tiny-qwen3").on(ComputeDevice::CpuTensors).unwrap();
    assert!(matches!(
        moved.on(ComputeDevice::CpuTensors),
        Err(DeviceError::Moved)
    ));
}

#[test]
fn a_recurrent_state_comes_back_as_it_was_and_one_of_another_size_is_refused() {
    let shape = RecurrentShape {
        channels: 2,
        width: 3,
        heads: 1,
        key_dim: 2,
        value_dim: 1,
    };
    let piece = to_bytes([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].as_slice()]);
    let mut state = TensorRecurrent::new(Device::Cpu, shape);
    state.restore(&piece);
    assert_eq!(state.piece().unwrap(), piece);
    let mut own = state.get().unwrap();
    state.set(own.clone());
    assert_eq!(state.piece().unwrap(), piece);
    // One more input of each channel: the oldest goes, and the weights are of the newest last.
    let row = Tensor::new(&[[10.0f32, 20.0]], &Device::Cpu).unwrap();
    let weights = Tensor::new(&[[0.0f32, 0.0], [1.0, 0.0], [0.0, 1.0]], &Device::Cpu).unwrap();
    let sum = own.convolve(&row, &weights).unwrap();
    assert_eq!(sum.to_vec2::<f32>().unwrap(), [[3.0, 20.0]]);
    state.set(own);
    let after = to_bytes([[2.0, 3.0, 10.0, 5.0, 6.0, 20.0, 7.0, 8.0].as_slice()]);
    assert_eq!(state.piece().unwrap(), after);
    state.restore(&piece[..8]);
    let refused = state.get().err().unwrap().to_string();
    assert!(refused.contains("another size"), "{refused}");
}
