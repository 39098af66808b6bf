//! The messages of one proxy.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fairlead_handoff::message::{Control, Kind};
use fairlead_handoff::{Body, Cid, Command, MESSAGE_BYTES, Message, Op, Owner, Refusal};
use fairlead_os_tcp::pass::{self, Peer};

use super::Carrier;

/// Between two looks at whether the switch stops.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest that a proxy may ask to wait for a quiet point.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Serves a proxy until it goes, says something that is no message, or the switch stops.
pub(super) fn serve(carrier: &Carrier, link: &Arc<OwnedFd>, peer: Peer) {
    let owner = Owner(peer.user);
    tracing::debug!(user = peer.user, process = peer.process, "a proxy has come");
    {
        let links = &mut carrier.state().links;
        links.retain(|(_, link)| link.strong_count() > 0);
        links.push((owner, Arc::downgrade(link)));
    }
    while !carrier.is_stopping() {
        let mut bytes = [0; MESSAGE_BYTES + 1]; // so that a longer one shows
        match pass::wait_for(link.as_fd(), PAUSE) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(_) => break,
        }
        let (length, descriptors) = match pass::receive(link.as_fd(), &mut bytes) {
            Ok(Some((length, descriptors))) => (length, descriptors),
            Ok(None) => continue,
            Err(_) => break,
        };
        if length == 0 && descriptors.is_empty() {
            break;
        }
        let message = bytes.first_chunk().filter(|_| length == MESSAGE_BYTES);
        let Some(Ok(message)) = message.map(Message::decode) else {
            carrier.state().ledger.counts.malformed();
            break;
        };
        if !answer(carrier, link, owner, &message, descriptors) {
            break;
        }
    }
    tracing::debug!(user = peer.user, process = peer.process, "a proxy has gone");
}

/// Does what a message asks for, and answers it. False when the proxy cannot be answered.
fn answer(
    carrier: &Carrier,
    link: &Arc<OwnedFd>,
    owner: Owner,
    message: &Message,
    descriptors: Vec<OwnedFd>,
) -> bool {
    carrier.state().ledger.counts.message(message);
    let Body::Command(command) = message.body else {
        return true; // an answer to what it was asked
    };
    let (cid, op) = (message.cid, command.op());
    let outcome = match command {
        Command::Handoff { kind, unwritten } => {
            let pair = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Refusal::NotTcp);
            match (kind, pair) {
                (Kind::Pair, Ok(pair)) => carrier
                    .adopt(owner, link, pair, unwritten)
                    .map(|cid| (u64::from(cid.0), Vec::new())),
                (Kind::Pair, Err(refusal)) => Err(refusal),
                _ => Err(carrier.refused(op, Refusal::Unsupported)),
            }
        }
        Command::Restore { wait_ms } => {
            let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
            owned(carrier, owner, op, cid)
                .and_then(|()| carrier.give_back(cid, wait))
                .map(|sockets| (0, sockets.into()))
        }
        Command::Control {
            control: Control::Abort,
            ..
        } => owned(carrier, owner, op, cid)
            .and_then(|()| carrier.abort(cid))
            .map(|()| (0, Vec::new())),
        _ => Err(carrier.refused(op, Refusal::Unsupported)),
    };
    let (message, sockets) = match outcome {
        Ok((value, sockets)) => (Message::done(cid, op, value), sockets),
        Err(reason) => (Message::refused(cid, op, reason), Vec::new()),
    };
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    pass::send(link.as_fd(), &message.encode(), &sockets).is_ok()
}

/// A user moves its own connections only; root moves all.
fn owned(carrier: &Carrier, owner: Owner, op: Op, cid: Cid) -> Result<(), Refusal> {
    let entry = carrier.state().ledger.find(cid).copied();
    let is_its = entry.is_some_and(|entry| entry.owner == owner || owner == Owner(0));
    match is_its {
        true => Ok(()),
        false => Err(carrier.refused(op, Refusal::Gone)),
    }
}
