//! Groups of whole-number codes as 32-bit floats.

#[cfg(target_arch = "x86_64")]
use super::strip::MACHINE;
use super::weights::GROUP;
#[cfg(target_arch = "x86_64")]
use pulp::{NullaryFnOnce, bytemuck::cast, f32x8, i8x16, x86::V3};

/// `out = scale × code + offset`, one scale and one offset for each [`GROUP`] of codes.
pub(crate) fn unpack(codes: &[i8], scales: &[(f32, f32)], out: &mut [f32]) {
    let groups = Groups { codes, scales, out };
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = *MACHINE {
        simd.vectorize(InLanes { simd, groups });
        return;
    }
    groups.plainly();
}

struct Groups<'a> {
    codes: &'a [i8],
    scales: &'a [(f32, f32)],
    out: &'a mut [f32],
}

impl Groups<'_> {
    fn plainly(self) {
        let groups = self.codes.as_chunks::<GROUP>().0.iter().zip(self.scales);
        let out = self.out.as_chunks_mut::<GROUP>().0;
        for (out, (codes, (scale, offset))) in out.iter_mut().zip(groups) {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = f32::from(*code) * scale + offset;
            }
        }
    }
}

/// Spelled out for AVX2: the compiler makes of the plain loop one that shuffles more than it computes.
#[cfg(target_arch = "x86_64")]
struct InLanes<'a> {
    simd: V3,
    groups: Groups<'a>,
}

#[cfg(target_arch = "x86_64")]
impl NullaryFnOnce for InLanes<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, groups } = self;
        let codes = groups.codes.as_chunks::<GROUP>().0.iter().zip(groups.scales);
        let out = groups.out.as_chunks_mut::<GROUP>().0;
        for (out, (codes, (scale, offset))) in out.iter_mut().zip(codes) {
            let (scale, offset) = (simd.splat_f32x8(*scale), simd.splat_f32x8(*offset));
            let halves: [[u64; 2]; 2] = cast(*codes);
            let (lanes, _) = out.as_chunks_mut::<8>();
            for (lane, eight) in lanes.iter_mut().zip(halves.as_flattened()) {
                let codes: i8x16 = cast([*eight, 0]);
                let whole = simd.convert_i32x8_to_f32x8(simd.convert_i8x16_to_i32x8(codes));
                let floats: f32x8 = simd.mul_add_f32x8(whole, scale, offset);
                *lane = cast(floats);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_the_plain_loop_give_the_same_bits() {
        let codes: Vec<i8> = (0..96).map(|i| (i * 37 % 256) as u8 as i8).collect();
        let scale = half::f16::from_f32(0.1234).to_f32();
        let scales = [(scale, -0.5), (3.0, 0.0), (-0.25, 0.062_5)];
        let (mut fast, mut plain) = (vec![0.0; 96], vec![1.0; 96]);
        unpack(&codes, &scales, &mut fast);
        let groups = Groups {
            codes: &codes,
            scales: &scales,
            out: &mut plain,
        };
        groups.plainly();
        assert_eq!(fast, plain);
        assert_eq!(plain[33], f32::from(codes[33]) * 3.0);
    }
}
