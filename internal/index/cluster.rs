//! Redis Cluster: the master of the one slot in which all keys of the index are.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use redis::RedisResult;
use tokio::task::JoinSet;

use super::guide::Guide;
use super::servers::{Access, Address, Opinion, Word, newest};

/// Most nodes that are asked besides those of the URL. A large cluster has a long answer.
const MAX_LEARNED: usize = 8;

/// The nodes of a cluster.
pub(super) struct ClusterNodes {
    /// A key of the index. The server computes its slot.
    key: String,
    access: Access,
    /// The nodes of the URL.
    seeds: Vec<Arc<Guide>>,
    /// Other nodes, as the last answer named them. They still answer when those of the URL are gone.
    learned: Mutex<Vec<Arc<Guide>>>,
}

impl ClusterNodes {
    pub(super) fn new(key: &str, addresses: &[Address], access: &Access) -> RedisResult<Self> {
        let seeds: RedisResult<_> = addresses.iter().map(|address| Guide::new(address, access).map(Arc::new)).collect();
        Ok(Self { key: key.to_owned(), access: access.clone(), seeds: seeds?, learned: Mutex::default() })
    }

    /// Return the word about the master of the slot. `known` is the epoch of the last word. Nodes are asked at the same
    /// time, so that one that hangs costs no time.
    pub(super) async fn master(&self, known: u64) -> RedisResult<Word> {
        let nodes: Vec<Arc<Guide>> = self.seeds.iter().cloned().chain(self.learned().clone()).collect();
        let (mut asked, seen) = (JoinSet::new(), Arc::new(Mutex::new(None)));
        for node in nodes {
            let (key, with_tls, seen) = (self.key.clone(), self.access.with_tls(), Arc::clone(&seen));
            asked.spawn(async move {
                let view = ask(&node, &key, with_tls).await?;
                let opinion = view.opinion.clone();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.as_ref().is_none_or(|best: &View| best.opinion.epoch < opinion.epoch) {
                    *seen = Some(view);
                }
                Ok(opinion)
            });
        }
        let newest = newest(asked, known, "no node of the redis cluster names the master").await?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(view) = seen {
            self.learn(&view.nodes)?;
        }
        Ok(newest)
    }

    /// Keep these nodes, and the connections to those of them that are known already.
    fn learn(&self, nodes: &[Address]) -> RedisResult<()> {
        let seeds: HashSet<&Address> = self.seeds.iter().map(|seed| seed.address()).collect();
        let mut learned = self.learned();
        let known = std::mem::take(&mut *learned);
        for address in nodes.iter().filter(|address| !seeds.contains(address)).take(MAX_LEARNED) {
            let guide = match known.iter().find(|guide| guide.address() == address) {
                Some(guide) => Arc::clone(guide),
                None => Arc::new(Guide::new(address, &self.access)?),
            };
            learned.push(guide);
        }
        Ok(())
    }

    fn learned(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Guide>>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cluster, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    opinion: Opinion,
    /// All nodes that can be reached, as far as this node knows: the masters, then the replicas.
    nodes: Vec<Address>,
}

async fn ask(node: &Guide, key: &str, with_tls: bool) -> Result<View, String> {
    let mut question = redis::pipe();
    question.cmd("CLUSTER").arg("KEYSLOT").arg(key).cmd("CLUSTER").arg("NODES");
    let (slot, text): (u16, String) = node.ask(&question).await?;
    read_view(&text, slot, node.address(), with_tls)
        .ok_or_else(|| format!("{}: no node has slot {slot}, in which the index is", node.address()))
}

/// Read the answer to CLUSTER NODES of the node at the address `asked`. None when no node has the slot.
fn read_view(text: &str, slot: u16, asked: &Address, with_tls: bool) -> Option<View> {
    let mut view: Option<Opinion> = None;
    let (mut nodes, mut replicas) = (Vec::new(), Vec::new());
    for line in text.lines() {
        // Id, place, flags, id of the master, ping, pong, epoch, state of the link, then the slots.
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, place, flags, _, _, _, epoch, _, slots @ ..] = words.as_slice() else { continue };
        let has = |flag: &str| flags.split(',').any(|other| other == flag);
        let Some(address) = address_of(place, asked, with_tls) else { continue };
        if !has("noaddr") && !has("handshake") && !has("fail") {
            if has("master") { &mut nodes } else { &mut replicas }.push(address.clone());
        }
        let Ok(epoch) = epoch.parse() else { continue };
        let owns = has("master") && !has("noaddr") && slots.iter().any(|range| holds(range, slot));
        if owns && view.as_ref().is_none_or(|best| best.epoch < epoch) {
            view = Some(Opinion { epoch, master: address });
        }
    }
    nodes.append(&mut replicas);
    Some(View { opinion: view?, nodes })
}

/// Read `ip:port@bus,hostname`. Certificates name hosts, so with TLS the host name counts if there is one. A node that
/// does not know its own address leaves it out.
fn address_of(place: &str, asked: &Address, with_tls: bool) -> Option<Address> {
    let (place, more) = place.split_once('@').unwrap_or((place, ""));
    let (ip, port) = place.rsplit_once(':')?;
    let hostname = more.split(',').nth(1).filter(|name| with_tls && !name.is_empty() && !name.contains('='));
    let host = match hostname {
        Some(name) => name,
        None if ip.is_empty() => &asked.host,
        None => ip,
    };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// Return whether a slot is in `7`, or in `3-9`. A slot on its way to another node is written in brackets besides.
fn holds(range: &str, slot: u16) -> bool {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
a1 127.0.0.1:7001@17001,one.example master - 0 1426238317239 4 connected 0-5460 [93-<-b2]
b2 127.0.0.1:7002@17002,two.example myself,master - 0 0 6 connected 5461-10922 10923 [5500->-a1]
c3 127.0.0.1:7003@17003 master,fail - 1426238317239 1426238317239 5 disconnected 10924-16383
d4 ::1:7004@17004 slave c3 0 1426238316232 5 connected
e5 :0@0 slave,noaddr a1 0 0 1 disconnected
";

    fn asked() -> Address {
        Address { host: "seed".to_owned(), port: 1 }
    }

    #[test]
    fn the_node_with_the_slot_is_the_master() {
        let master = |slot, with_tls| {
            let view = read_view(TEXT, slot, &asked(), with_tls).unwrap();
            (view.opinion.epoch, view.opinion.master.to_string())
        };
        assert_eq!(master(0, false), (4, "127.0.0.1:7001".to_owned()));
        assert_eq!(master(5_500, true), (6, "two.example:7002".to_owned()));
        assert_eq!(master(10_923, false), (6, "127.0.0.1:7002".to_owned()));
        // Its failure shows at the connection. A node that was cut off calls every other one failed.
        assert_eq!(master(16_383, true), (5, "127.0.0.1:7003".to_owned()));
        let nodes = read_view(TEXT, 0, &asked(), false).unwrap().nodes;
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        assert_eq!(nodes, ["127.0.0.1:7001", "127.0.0.1:7002", "[::1]:7004"]);
    }

    #[test]
    fn a_node_without_an_address_is_where_it_was_asked() {
        let view = read_view("a1 :7001@17001 myself,master - 0 0 1 connected 0-16383", 7, &asked(), false).unwrap();
        assert_eq!(view.opinion.master, Address { host: "seed".to_owned(), port: 7_001 });
        assert_eq!(read_view("a1 :7001@17001 myself,master - 0 0 1 connected 8", 7, &asked(), false), None);
        assert_eq!(read_view("nonsense", 7, &asked(), false), None);
    }

    #[test]
    fn of_two_owners_the_one_of_the_newer_epoch_counts() {
        let text = "a1 h:1@2 master - 0 0 3 connected 0-9\nb2 i:1@2 master - 0 0 5 connected 5\n";
        assert_eq!(read_view(text, 5, &asked(), false).unwrap().opinion.master.host, "i");
        assert_eq!(read_view(text, 6, &asked(), false).unwrap().opinion.master.host, "h");
    }
}
