//! Named tensors in files, handed out one by one as 32-bit floats.

use super::LoadError;
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Where a network's weights come from. Names are those of a Hugging Face checkpoint.
pub(super) trait Weights {
    /// Whether there is a tensor of this name.
    fn has(&self, name: &str) -> bool;

    /// The tensor, which must have this shape, as contiguous 32-bit floats.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError>;
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

impl Weights for Safetensors {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let missing = || LoadError::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
        };
        checked(
            &self.path,
            name,
            self.tensors.get(name).ok_or_else(missing)?,
            shape,
        )
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

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let name = gguf_name(name).unwrap_or_else(|| name.to_owned());
        if !self.content.tensor_infos.contains_key(&name) {
            return Err(LoadError::NoTensor {
                path: self.path.to_owned(),
                name,
            });
        }
        let tensor = self
            .content
            .tensor(&mut *self.file.borrow_mut(), &name, &Device::Cpu)
            .and_then(|quantised| quantised.dequantize(&Device::Cpu))
            .map_err(|source| LoadError::Tensor {
                path: self.path.to_owned(),
                name: name.clone(),
                source: Box::new(source),
            })?;
        checked(self.path, &name, &tensor, shape)
    }
}

fn checked(path: &Path, name: &str, tensor: &Tensor, shape: &[usize]) -> Result<Tensor, LoadError> {
    if tensor.dims() != shape {
        return Err(LoadError::Shape {
            path: path.to_owned(),
            name: name.to_owned(),
            found: tensor.dims().to_vec(),
            expected: shape.to_vec(),
        });
    }
    let convert = tensor.to_dtype(DType::F32).and_then(|t| t.contiguous());
    convert.map_err(|source| LoadError::Tensor {
        path: path.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    })
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
    fn names_are_translated() {
        assert_eq!(
            gguf_name("model.layers.12.mlp.up_proj.weight").as_deref(),
            Some("blk.12.ffn_up.weight")
        );
        assert_eq!(gguf_name("lm_head.weight").as_deref(), Some("output.weight"));
        assert_eq!(gguf_name("model.layers.0.self_attn.q_norm.weight"), None);
    }
}
