//! decode: tokens from KV, streamed to the client as text.

use super::journey::{Fault, Journey, Leg};
use super::valid::stale;
use crate::answer::{AnswerEvent, ToldLogprobs, ToldToken, Usage};
use crate::error::RequestError;
use portolan_decide::Fallback;
use portolan_ports::{
    DecodeEvent, DecodeJob, FinishReason, InstanceOutcome, KvSet, Retention, TextStream, TokenLogprobs,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

impl Journey {
    /// Generates the answer. `started` is told when the first token exists; before that, the caller may still take
    /// another route.
    pub(super) async fn decode(
        &mut self,
        leg: &Leg,
        kv: KvSet,
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) -> Result<(), Fault> {
        let begun = self.enter("decode");
        let end = self.generate(leg, kv, started).await;
        self.note_stage("decode", begun);
        end
    }

    async fn generate(
        &mut self,
        leg: &Leg,
        kv: KvSet,
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) -> Result<(), Fault> {
        let mut tokens = leg.decoder.decode(self.decode_job(leg, kv));
        let least = self.request.sampling.min_tokens;
        let mut text = Text::new(self.model().text.stream(), self.request.stop.clone(), least);
        let mut thought = None;
        loop {
            let instance = leg.route.decode;
            match self.next(leg, &mut tokens, started.is_some()).await? {
                Some(DecodeEvent::Token(token)) => {
                    self.begin(leg, started);
                    self.record.completion_tokens += 1;
                    let piece = text.push(token)?;
                    // A client that left is noticed through `cancel`.
                    drop(self.events.send(AnswerEvent::Delta {
                        token,
                        text: piece,
                        logprobs: thought.take().map(|thought| self.told(token, &thought)),
                    }));
                    if text.stopped {
                        return self.finish(String::new(), FinishReason::Stop, leg);
                    }
                }
                Some(DecodeEvent::Finished(reason)) => {
                    self.begin(leg, started);
                    let (rest, stopped) = text.finish()?;
                    let reason = if stopped { FinishReason::Stop } else { reason };
                    return self.finish(rest, reason, leg);
                }
                Some(DecodeEvent::Logits(_)) => {}
                Some(DecodeEvent::Logprobs(logprobs)) => thought = Some(logprobs),
                Some(DecodeEvent::Failed(error)) => {
                    return Err(stale(&error).unwrap_or(Fault::Engine { instance, error }));
                }
                None => {
                    let error = portolan_ports::EngineError::Broken("the instance went away".to_owned());
                    return Err(Fault::Engine { instance, error });
                }
            }
        }
    }

    /// What the instance says next. One that says nothing for longer than it may, as it is loaded at the moment, is left
    /// for another if there is one and the answer has not begun; otherwise that is noted, and it is waited for.
    async fn next(
        &mut self,
        leg: &Leg,
        tokens: &mut mpsc::UnboundedReceiver<DecodeEvent>,
        before_the_first: bool,
    ) -> Result<Option<DecodeEvent>, Fault> {
        let rule = self.site.live().timeouts;
        let begun = Instant::now();
        let mut wait = match leg.is_remote() {
            true => rule.remote_decode,
            false => rule.local_decode,
        };
        let mut noted = false;
        loop {
            if let Ok(event) = tokio::time::timeout_at(begun + wait, tokens.recv()).await {
                return Ok(event);
            }
            // Asked only when a token is slow: a picture of the fleet is not made for each token.
            let fleet = self.site.parts.fleet.view();
            let instance = fleet.instance(leg.route.decode);
            let limit = instance.map_or(rule.longest, |i| rule.token(&leg.facts, i));
            if wait < limit.min(rule.longest) {
                wait = limit.min(rule.longest);
            } else if before_the_first && leg.patience.decode_elsewhere {
                return Err(self.slow_token(leg, wait));
            } else if wait < rule.longest {
                if !std::mem::replace(&mut noted, true) {
                    self.note_slow_token(leg, wait);
                }
                wait = rule.longest;
            } else {
                return Err(Fault::DecodeStalled(leg.names.decode_instance.clone(), wait));
            }
        }
    }

    fn slow_token(&self, leg: &Leg, limit: Duration) -> Fault {
        Fault::Slow {
            instance: leg.route.decode,
            at: leg.decode_at(),
            stage: "decode",
            limit,
        }
    }

    /// Writes down that a token is late while nothing can be done but wait.
    fn note_slow_token(&mut self, leg: &Leg, limit: Duration) {
        let fault = self.slow_token(leg, limit);
        self.blame(&fault);
        self.record.fallbacks.push(Fallback {
            stage: self.at.to_owned(),
            from: format!("decode at {}", leg.decode_at()),
            to: "waiting on".to_owned(),
            reason: fault.to_string(),
        });
    }

    /// Logprobs with the tokens' bytes in place of their ids.
    fn told(&self, token: u32, thought: &TokenLogprobs) -> ToldLogprobs {
        let told = |token: u32, logprob: f32| ToldToken {
            bytes: self.model().text.token_bytes(token),
            logprob,
        };
        let likeliest = thought.likeliest.iter();
        ToldLogprobs {
            drawn: told(token, thought.drawn),
            likeliest: likeliest.map(|(token, logprob)| told(*token, *logprob)).collect(),
        }
    }

    fn decode_job(&self, leg: &Leg, kv: KvSet) -> DecodeJob {
        let mut stop_ids = self.request.stop_token_ids.clone();
        if !self.request.ignore_eos {
            stop_ids.extend(self.model().text.stop_ids());
        }
        DecodeJob {
            request: self.id(),
            key: self.key,
            about: Arc::clone(&self.about),
            prompt: self.request.prompt.clone(),
            kv,
            sampling: self.request.sampling.clone(),
            max_tokens: self.request.max_tokens,
            stop_ids,
            // What was quantised is good for this answer, and never for one that has to be exact.
            retention: match self.record.kv.quantised {
                Some(_) => Retention::Drop,
                None => self.if_current(leg.keep_here),
            },
            logits: false,
            cancel: leg.cancel.clone(),
        }
    }

    /// The answer begins: from here on there is no other route.
    pub(super) fn begin(
        &mut self,
        leg: &Leg,
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) {
        let Some(first) = started.take() else { return };
        self.record.ttft_ms = Some(self.elapsed_ms());
        self.record.route = Some(leg.names.clone());
        drop(first.send(Ok(())));
    }

    fn finish(&mut self, text: String, reason: FinishReason, leg: &Leg) -> Result<(), Fault> {
        self.site
            .parts
            .fleet
            .outcome(leg.route.decode, InstanceOutcome::Served);
        let usage = Usage {
            prompt_tokens: self.record.prompt_tokens,
            completion_tokens: self.record.completion_tokens,
            cached_tokens: self.record.kv.cached_tokens,
            kv_quantised: self.record.kv.quantised,
        };
        drop(self.events.send(AnswerEvent::Finished { text, reason, usage }));
        Ok(())
    }
}

/// Turns tokens into text and looks for stop texts. Text that could be the beginning of a stop text is withheld.
///
/// A stop text that is complete within the least number of tokens ends nothing, as in vLLM; one that ends behind them does,
/// wherever it began.
struct Text {
    stream: Box<dyn TextStream>,
    stops: Vec<String>,
    /// Tokens that are still to come before a stop text counts.
    least: u32,
    withheld: String,
    stopped: bool,
}

impl Text {
    fn new(stream: Box<dyn TextStream>, stops: Vec<String>, least: u32) -> Self {
        Self {
            stream,
            stops,
            least,
            withheld: String::new(),
            stopped: false,
        }
    }

    fn push(&mut self, token: u32) -> Result<String, Fault> {
        let more = self.stream.push(token)?;
        let text = self.release(&more);
        self.least = self.least.saturating_sub(1);
        Ok(text)
    }

    fn finish(&mut self) -> Result<(String, bool), Fault> {
        let more = self.stream.finish()?;
        let mut text = self.release(&more);
        if !self.stopped {
            text.push_str(&std::mem::take(&mut self.withheld));
        }
        Ok((text, self.stopped))
    }

    /// Adds text; returns what certainly belongs to the answer.
    fn release(&mut self, more: &str) -> String {
        self.withheld.push_str(more);
        let counts = self.least == 0;
        let stops = self.stops.iter().filter(|_| counts);
        let hit = stops.filter_map(|stop| self.withheld.find(stop.as_str())).min();
        if let Some(at) = hit {
            self.stopped = true;
            self.withheld.truncate(at);
            return std::mem::take(&mut self.withheld);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.withheld, stop))
            .max()
            .unwrap_or(0);
        let kept = self.withheld.split_off(self.withheld.len() - keep);
        std::mem::replace(&mut self.withheld, kept)
    }
}

/// Length in bytes of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len().saturating_sub(1));
    (1..=most)
        .rev()
        .find(|&n| {
            text.is_char_boundary(text.len() - n)
                && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_ports::TextError;

    struct Words(Vec<&'static str>);

    impl TextStream for Words {
        fn push(&mut self, token: u32) -> Result<String, TextError> {
            Ok(self.0[token as usize].to_owned())
        }
        fn finish(&mut self) -> Result<String, TextError> {
            Ok(String::new())
        }
    }

    fn run(words: &[&'static str], stops: &[&str]) -> (Vec<String>, String, bool) {
        run_with(words, stops, 0)
    }

    fn run_with(words: &[&'static str], stops: &[&str], least: u32) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut text = Text::new(Box::new(Words(words.to_vec())), stops, least);
        let mut out = Vec::new();
        for token in 0..words.len() {
            out.push(text.push(token as u32).unwrap());
            if text.stopped {
                return (out, String::new(), true);
            }
        }
        let (rest, stopped) = text.finish().unwrap();
        (out, rest, stopped)
    }

    #[test]
    fn text_before_a_stop_is_sent_and_the_stop_is_not() {
        let (out, _, stopped) = run(&["one ", "tw", "o EN", "D three"], &["END"]);
        assert!(stopped);
        assert_eq!(out.concat(), "one two ");
    }

    #[test]
    fn a_stop_within_the_least_tokens_ends_nothing_and_one_behind_them_does() {
        let words = ["a END", " b", " END", " c E", "ND"];
        let told = |least| {
            let (out, rest, stopped) = run_with(&words, &["END"], least);
            (out.concat() + &rest, stopped)
        };
        assert_eq!(told(0), ("a ".to_owned(), true));
        assert_eq!(told(1), ("a END b ".to_owned(), true));
        assert_eq!(told(3), ("a END b END c ".to_owned(), true));
        let straddling = told(4);
        assert_eq!(
            straddling,
            ("a END b END c ".to_owned(), true),
            "it ends behind them"
        );
        assert_eq!(told(5), ("a END b END c END".to_owned(), false));
    }

    #[test]
    fn what_might_begin_a_stop_is_withheld_and_comes_at_the_end() {
        let (out, rest, stopped) = run(&["a E", "N", "x E"], &["END"]);
        assert_eq!(
            (out, rest.as_str(), stopped),
            (vec!["a ".into(), String::new(), "ENx ".into()], "E", false)
        );
    }

    #[test]
    fn the_earliest_of_several_stops_counts_and_multibyte_text_is_never_cut() {
        let (out, _, stopped) = run(&["é世界b", "STOP b"], &["STOP", "b"]);
        assert!(stopped);
        assert_eq!(out.concat(), "é世界");
        let (out, rest, _) = run(&["世", "界"], &["界限"]);
        assert_eq!((out.concat().as_str(), rest.as_str()), ("世", "界"));
    }
}
