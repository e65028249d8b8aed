//! The policy runtime against guests of all kinds, made from WebAssembly text.

#[cfg(test)]
mod bad_answers;
#[cfg(test)]
mod compiling;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod cost_of_calls;
#[cfg(test)]
mod guests;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod loading;
#[cfg(test)]
mod rehearsal;
mod rejections;
#[cfg(test)]
mod support;
#[cfg(test)]
mod unharmed;
#[cfg(test)]
mod worlds;
