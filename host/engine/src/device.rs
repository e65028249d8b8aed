//! Where an instance of the native engine computes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// What computes the layers of a model. Written `cpu`, `cpu-tensors`, `cuda` (the first GPU) or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum ComputeDevice {
    /// The processor, by this crate's own kernels.
    #[default]
    Cpu,
    /// The processor, by the code that runs on a GPU: slower, for seeing what a GPU would be told without having one.
    CpuTensors,
    /// The GPU of this number, as CUDA counts those that the process may use.
    Cuda(u32),
}

impl ComputeDevice {
    /// Whether this build has the code for it.
    ///
    /// # Errors
    /// [`DeviceError::NotBuilt`] for a GPU in a build without the feature `cuda`.
    pub fn check_built(self) -> Result<(), DeviceError> {
        match self {
            Self::Cuda(_) if !cfg!(feature = "cuda") => Err(DeviceError::NotBuilt),
            _ => Ok(()),
        }
    }

    /// The tensor library's name for it.
    pub(crate) fn open(self) -> Result<candle_core::Device, DeviceError> {
        self.check_built()?;
        match self {
            Self::Cpu | Self::CpuTensors => Ok(candle_core::Device::Cpu),
            // A stream of its own rather than the default one, which would wait for every other stream of the process.
            Self::Cuda(ordinal) => {
                let opened = candle_core::Device::new_cuda_with_stream(ordinal as usize);
                opened.map_err(|source| DeviceError::Unusable {
                    device: self,
                    source: Box::new(source),
                })
            }
        }
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::CpuTensors => f.write_str("cpu-tensors"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no device; `cpu`, `cpu-tensors`, `cuda` and `cuda:N` are")]
pub struct DeviceNameError(String);

impl FromStr for ComputeDevice {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let unknown = || DeviceNameError(text.to_owned());
        match text {
            "cpu" => Ok(Self::Cpu),
            "cpu-tensors" => Ok(Self::CpuTensors),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                ordinal.parse().map(Self::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl TryFrom<String> for ComputeDevice {
    type Error = DeviceNameError;

    fn try_from(text: String) -> Result<Self, DeviceNameError> {
        text.parse()
    }
}

impl From<ComputeDevice> for String {
    fn from(device: ComputeDevice) -> Self {
        device.to_string()
    }
}

/// Why a model cannot be computed on a device.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The program was built without CUDA.
    #[error("this build has no CUDA: build it with `--features cuda`, or compute on the `cpu`")]
    NotBuilt,
    /// The device is not there, or it failed.
    #[error("{device} cannot be used")]
    Unusable {
        /// Which one.
        device: ComputeDevice,
        /// What the tensor library said.
        #[source]
        source: Box<candle_core::Error>,
    },
    /// The model's attention has a window.
    #[error("attention with a window is computed on the `cpu` only: leave `window` out, or compute there")]
    Window,
    /// The model is on a device already.
    #[error("the model was brought to a device before: begin with the model as it was loaded")]
    Moved,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_given() {
        for (name, device) in [
            ("cpu", ComputeDevice::Cpu),
            ("cpu-tensors", ComputeDevice::CpuTensors),
            ("cuda", ComputeDevice::Cuda(0)),
            ("cuda:3", ComputeDevice::Cuda(3)),
        ] {
            assert_eq!(name.parse(), Ok(device));
            assert_eq!(device.to_string(), name);
        }
        assert_eq!("cuda:0".parse(), Ok(ComputeDevice::Cuda(0)));
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            let refused = name.parse::<ComputeDevice>().unwrap_err();
            assert!(refused.to_string().contains("`cuda:N`"), "{refused}");
        }
    }

    #[test]
    fn a_build_without_cuda_says_what_to_build() {
        let built = ComputeDevice::Cuda(0).check_built();
        if cfg!(feature = "cuda") {
            assert!(built.is_ok());
        } else {
            assert!(built.unwrap_err().to_string().contains("--features cuda"));
        }
        assert!(ComputeDevice::CpuTensors.check_built().is_ok());
    }
}
