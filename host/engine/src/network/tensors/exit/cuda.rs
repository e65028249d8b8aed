//! Copies from a GPU into page-locked memory, by a stream of their own.
//!
//! The copy engine reads a piece as soon as the compute stream has written it, while that goes on with the next layer.
//! Memory that is not page-locked would be copied twice, and the copy would wait for the processor.

use candle_core::cuda_backend::cudarc::driver::{CudaStream, DriverError, PinnedHostSlice};
use candle_core::{CudaDevice, Error, Result, Storage, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// Page-locked buffers that are kept for the next pieces: one is read while the next is filled.
const SPARE: usize = 2;

/// A stream that only copies.
pub(in crate::network::tensors) struct CopyStream {
    stream: Arc<CudaStream>,
    compute: Arc<CudaStream>,
    /// Values of a buffer.
    most: usize,
    spare: Mutex<Vec<PinnedHostSlice<f32>>>,
}

/// A copy under way.
pub(in crate::network::tensors) struct Copying {
    /// Read until the copy has ended.
    _piece: Tensor,
    /// Taken out only when this is dropped.
    buffer: Option<PinnedHostSlice<f32>>,
    values: usize,
    home: Arc<CopyStream>,
}

impl CopyStream {
    pub(super) fn new(device: &CudaDevice, most: usize) -> Result<Self> {
        let compute = device.cuda_stream();
        Ok(Self {
            stream: compute.context().new_stream().map_err(failed)?,
            compute,
            most,
            spare: Mutex::new(Vec::new()),
        })
    }

    /// Whether a piece fits a buffer.
    pub(super) fn takes(&self, piece: &Tensor) -> bool {
        piece.elem_count() <= self.most
    }

    /// Copies a piece, whose values lie side by side, once all that the compute stream was told so far is done.
    pub(super) fn begin(self: &Arc<Self>, piece: Tensor) -> Result<Copying> {
        let values = piece.elem_count();
        let mut buffer = self.buffer()?;
        {
            let (storage, layout) = piece.storage_and_layout();
            let Storage::Cuda(storage) = &*storage else {
                return Err(Error::msg("a piece of KV that is to leave a GPU is not on one"));
            };
            let start = layout.start_offset();
            let slice = storage.as_cuda_slice::<f32>()?.slice(start..start + values);
            self.stream.join(&self.compute).map_err(failed)?;
            self.stream.memcpy_dtoh(&slice, &mut buffer).map_err(failed)?;
        }
        Ok(Copying {
            _piece: piece,
            buffer: Some(buffer),
            values,
            home: Arc::clone(self),
        })
    }

    fn buffer(&self) -> Result<PinnedHostSlice<f32>> {
        if let Some(buffer) = self.spare.lock().pop() {
            return Ok(buffer);
        }
        // Cached memory: the usual kind of page-locked memory is slow for the processor to read.
        let flags = 0;
        #[expect(unsafe_code, reason = "no safe way to page-locked memory")]
        // SAFETY: the memory is uninitialised. Any bits are a float, and only values that a copy has written are looked at.
        let buffer = unsafe { self.compute.context().alloc_pinned_with_flags(self.most, flags) };
        buffer.map_err(failed)
    }
}

impl Copying {
    /// Waits until the copy has ended, and hands the values over.
    pub(super) fn values<T>(&self, take: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let Some(buffer) = &self.buffer else {
            return Err(Error::msg("a piece of KV was asked for after it was dropped"));
        };
        let values = buffer.as_slice().map_err(failed)?;
        Ok(take(&values[..self.values]))
    }
}

impl Drop for Copying {
    /// Gives the buffer back, without a user's KV in it.
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else {
            return;
        };
        if let Ok(values) = buffer.as_mut_slice() {
            values[..self.values].fill(0.0);
            let mut spare = self.home.spare.lock();
            if spare.len() < SPARE {
                spare.push(buffer);
            }
        }
    }
}

impl std::fmt::Debug for CopyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyStream")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

fn failed(error: DriverError) -> Error {
    Error::wrap(error)
}
