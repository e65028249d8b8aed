//! The way of KV out of a device.

#[cfg(feature = "cuda")]
mod cuda;

use candle_core::{Device, Result, Tensor};

/// How KV leaves.
#[derive(Debug)]
pub(super) enum Exit {
    /// It is read when it is wanted.
    Read,
    /// It is copied while the device goes on computing.
    #[cfg(feature = "cuda")]
    Copy(std::sync::Arc<cuda::CopyStream>),
}

/// KV on its way out.
pub(super) enum Leaving {
    Read(Tensor),
    #[cfg(feature = "cuda")]
    Copy(cuda::Copying),
}

impl Exit {
    /// The way out of a device for pieces of up to `most` values.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only a GPU has a way of its own")
    )]
    pub(super) fn open(device: &Device, most: usize) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return cuda::CopyStream::new(device, most).map(|stream| Self::Copy(stream.into()));
        }
        Ok(Self::Read)
    }

    /// Sets a piece on its way; one whose values lie side by side.
    pub(super) fn begin(&self, piece: Tensor) -> Result<Leaving> {
        match self {
            Self::Read => Ok(Leaving::Read(piece)),
            #[cfg(feature = "cuda")]
            Self::Copy(stream) if stream.takes(&piece) => stream.begin(piece).map(Leaving::Copy),
            #[cfg(feature = "cuda")]
            Self::Copy(_) => Ok(Leaving::Read(piece)),
        }
    }
}

impl Leaving {
    /// Waits until it is out, and hands its values over.
    pub(super) fn values<T>(&self, take: impl FnOnce(&[f32]) -> T) -> Result<T> {
        match self {
            Self::Read(piece) => Ok(take(&piece.flatten_all()?.to_vec1()?)),
            #[cfg(feature = "cuda")]
            Self::Copy(copying) => copying.values(take),
        }
    }
}
