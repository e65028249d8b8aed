//! The thread that writes blocks and erases files.

use crate::folder::FileName;
use crate::state::Work;
use crate::tier::Shared;

/// Works until the tier is closed and nothing is left to do.
pub(crate) fn run(shared: &Shared) {
    while let Some(work) = next(shared) {
        match work {
            Work::Write(name, size) => {
                write(shared, name);
                let mut state = shared.state.lock();
                state.queued = state.queued - size;
                // Someone may wait for room.
                shared.changed.notify_all();
            }
            Work::Remove(name) => {
                shared.folder.bury(name);
                shared.folder.erase(name);
            }
            Work::Erase(name) => shared.folder.erase(name),
            Work::EraseLanded(name) => {
                if let Some(landing) = &shared.landing {
                    landing.erase(name);
                }
            }
        }
    }
}

fn next(shared: &Shared) -> Option<Work> {
    let mut state = shared.state.lock();
    state.is_busy = false;
    loop {
        if let Some(work) = state.work.pop_front() {
            state.is_busy = true;
            return Some(work);
        }
        shared.changed.notify_all();
        if state.is_closed {
            return None;
        }
        shared.changed.wait(&mut state);
    }
}

/// Writes a block that is still wanted, and publishes it if it still is afterwards.
fn write(shared: &Shared, name: FileName) {
    let pending = shared.state.lock().pending.get(&name.number).cloned();
    let written = pending.map(|(block, used_at)| shared.folder.write(name, &block, used_at, shared.key));
    let mut state = shared.state.lock();
    let is_wanted = state.pending.remove(&name.number).is_some();
    match written {
        Some(Ok(_)) if is_wanted => {
            if let Err(error) = shared.folder.publish(name) {
                tracing::error!(%error, "a block could not be put on disk");
                state.pool.remove(&name.id);
                state.refused += 1;
            }
        }
        Some(Err(error)) => {
            tracing::error!(%error, "a block could not be written to disk");
            if is_wanted {
                state.pool.remove(&name.id);
                state.refused += 1;
            }
            shared.folder.withdraw(name);
        }
        Some(Ok(_)) => shared.folder.withdraw(name),
        None => {}
    }
}
