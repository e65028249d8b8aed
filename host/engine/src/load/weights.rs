//! Named tensors in files, handed out one by one in the form they are computed with.

use super::LoadError;
use crate::kernel::weights::{GROUP, Grouped, Weights as Matrix};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Where a network's weights come from. Names are those of a Hugging Face checkpoint.
pub(super) trait Weights {
    /// Whether there is a tensor of this name.
    fn has(&self, name: &str) -> bool;

    /// The tensor, which must have this shape, as 32-bit floats.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError>;

    /// The matrix, which must have this shape, `[outputs, inputs]`, in the form it is multiplied from.
    fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, LoadError>;
}

/// Tensors of one or several safetensors files.
#[derive(Debug)]
pub(super) struct Safetensors {
    tensors: HashMap<String, Tensor>,
    path: PathBuf,
}

impl Safetensors {
    /// Reads all of `files`; errors about single tensors name `folder`.
    pub(super) fn read(folder: &Path, files: &[PathBuf]) -> Result<Self, LoadError> {
        let mut tensors = HashMap::new();
        for path in files {
            let buffer = std::fs::read(path).map_err(|source| LoadError::File {
                path: path.clone(),
                source,
            })?;
            let found = candle_core::safetensors::load_buffer(&buffer, &Device::Cpu).map_err(|e| {
                LoadError::Format {
                    path: path.clone(),
                    reason: e.to_string(),
                }
            })?;
            tensors.extend(found);
        }
        Ok(Self {
            tensors,
            path: folder.to_owned(),
        })
    }
}

impl Safetensors {
    fn named(&self, name: &str, shape: &[usize]) -> Result<&Tensor, LoadError> {
        let missing = || LoadError::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
        };
        let tensor = self.tensors.get(name).ok_or_else(missing)?;
        check_shape(&self.path, name, tensor.dims(), shape)?;
        Ok(tensor)
    }
}

impl Weights for Safetensors {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        floats(self.named(name, shape)?).map_err(|source| unusable(&self.path, name, source))
    }

    /// Weights of 16 bits stay so where every 32-bit float that they stand for has their bits.
    fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, LoadError> {
        let tensor = self.named(name, &shape)?;
        let matrix = match tensor.dtype() {
            DType::BF16 => halves(tensor).map(Matrix::Bf16),
            _ => floats(tensor).map(Matrix::F32),
        };
        matrix.map_err(|source| unusable(&self.path, name, source))
    }
}

/// Tensors of a GGUF file of the Llama architecture.
#[derive(Debug)]
pub(super) struct Gguf<'a> {
    pub(super) content: &'a Content,
    pub(super) file: RefCell<BufReader<File>>,
    pub(super) path: &'a Path,
}

impl Weights for Gguf<'_> {
    fn has(&self, name: &str) -> bool {
        gguf_name(name).is_some_and(|name| self.content.tensor_infos.contains_key(&name))
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let (name, tensor) = self.quantised(name, shape)?;
        let floats = tensor.dequantize(&Device::Cpu).and_then(|tensor| floats(&tensor));
        floats.map_err(|source| unusable(self.path, &name, source))
    }

    fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, LoadError> {
        let (name, tensor) = self.quantised(name, &shape)?;
        let grouped = tensor.data().map(|data| grouped(tensor.dtype(), &data));
        match grouped.map_err(|source| unusable(self.path, &name, source))? {
            Some(grouped) if shape[1].is_multiple_of(GROUP) => Ok(Matrix::Grouped(grouped)),
            _ => {
                let floats = tensor.dequantize(&Device::Cpu).and_then(|tensor| floats(&tensor));
                floats
                    .map(Matrix::F32)
                    .map_err(|source| unusable(self.path, &name, source))
            }
        }
    }
}

impl Gguf<'_> {
    /// A tensor as the file has it, and the name it has there.
    fn quantised(&self, name: &str, shape: &[usize]) -> Result<(String, QTensor), LoadError> {
        let name = gguf_name(name).unwrap_or_else(|| name.to_owned());
        if !self.content.tensor_infos.contains_key(&name) {
            return Err(LoadError::NoTensor {
                path: self.path.to_owned(),
                name,
            });
        }
        let tensor = self
            .content
            .tensor(&mut *self.file.borrow_mut(), &name, &Device::Cpu);
        let tensor = tensor.map_err(|source| unusable(self.path, &name, source))?;
        check_shape(self.path, &name, tensor.shape().dims(), shape)?;
        Ok((name, tensor))
    }
}

/// The bytes of a tensor whose format has one scale for 32 weights, in the form they are multiplied from; `None` for
/// other formats. A block is a 16-bit scale, in some an offset, and the codes.
fn grouped(format: GgmlDType, data: &[u8]) -> Option<Grouped> {
    let mut grouped = Grouped::default();
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    match format {
        GgmlDType::Q4_0 => {
            for block in data.as_chunks::<18>().0 {
                let scale = half(block);
                grouped.push_nibbles(&block[2..], (scale, -8.0 * scale));
            }
        }
        GgmlDType::Q4_1 => {
            for block in data.as_chunks::<20>().0 {
                grouped.push_nibbles(&block[4..], (half(block), half(&block[2..])));
            }
        }
        GgmlDType::Q8_0 => {
            for block in data.as_chunks::<34>().0 {
                grouped.push_bytes(&block[2..], half(block));
            }
        }
        _ => return None,
    }
    Some(grouped)
}

fn check_shape(path: &Path, name: &str, found: &[usize], expected: &[usize]) -> Result<(), LoadError> {
    if found == expected {
        return Ok(());
    }
    Err(LoadError::Shape {
        path: path.to_owned(),
        name: name.to_owned(),
        found: found.to_vec(),
        expected: expected.to_vec(),
    })
}

fn floats(tensor: &Tensor) -> candle_core::Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// The bits of 16-bit floats that are the upper half of a 32-bit one.
fn halves(tensor: &Tensor) -> candle_core::Result<Vec<u16>> {
    let values: Vec<bf16> = tensor.flatten_all()?.to_vec1()?;
    Ok(values.into_iter().map(bf16::to_bits).collect())
}

fn unusable(path: &Path, name: &str, source: candle_core::Error) -> LoadError {
    LoadError::Tensor {
        path: path.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}

/// What GGUF calls a tensor of a Hugging Face checkpoint of the Llama architecture.
fn gguf_name(name: &str) -> Option<String> {
    let top = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(top) = top {
        return Some(top.to_owned());
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match part.strip_suffix(".weight")? {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_weights_are_the_files_own_to_the_bit() {
        let values: Vec<f32> = (0..4096u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e7 - 0.7)
            .collect();
        let tensor = Tensor::from_vec(values, (32, 128), &Device::Cpu).unwrap();
        for format in [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q8_0] {
            let quantised = QTensor::quantize(&tensor, format).unwrap();
            let expected = floats(&quantised.dequantize(&Device::Cpu).unwrap()).unwrap();
            let grouped = Matrix::Grouped(grouped(format, &quantised.data().unwrap()).unwrap());
            let mut scratch = Vec::new();
            assert_eq!(grouped.floats(0, 4096, &mut scratch), expected, "{format:?}");
        }
        let other = QTensor::quantize(&tensor, GgmlDType::F16).unwrap();
        assert!(grouped(GgmlDType::F16, &other.data().unwrap()).is_none());
    }

    #[test]
    fn names_are_translated() {
        assert_eq!(
            gguf_name("model.layers.12.mlp.up_proj.weight").as_deref(),
            Some("blk.12.ffn_up.weight")
        );
        assert_eq!(gguf_name("lm_head.weight").as_deref(), Some("output.weight"));
        assert_eq!(gguf_name("model.layers.0.self_attn.q_norm.weight"), None);
    }
}
