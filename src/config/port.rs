//! The port's specification: `KIND:TARGET[,key=value…]`.
//!
//! Promises: pure but for the accounts of the machine, which are read only where `owner=` asks
//! for a name. An error says which kinds or keys there are.

#![forbid(unsafe_code)]

use super::values::{self, ValueError};
use super::{AfPacketSpec, BridgeKeys, Offer, PcapSpec, PortKind, PortSpec, TapSpec, VhostSpec};
use crate::sys::packet_socket::RingSize;
use crate::sys::tap;
use std::path::PathBuf;

/// What `run --help` says of ports.
pub const HELP: &str = "\
A port: KIND:TARGET[,key=value...]; once for each port

  vhost:PATH       listen on a unix socket for a frontend
    client         connect to the socket instead, and keep trying
    queues=N       queue pairs, 1 to 128 (default 1)
    mrg_rxbuf=off  do not offer mergeable receive buffers
    csum=off       nor checksums made by somebody else, nor what is next
    tso=off        nor TCP packets cut by somebody else
    mode=0660      permissions of the socket file
    owner=USER     its owner: a name or UID, optionally with :GROUP
  pcap:IN.pcap     receive the packets of a capture file
    out=OUT.pcap   and write there what is sent to the port
    loop           start over at the end of the input
    rate=N         so many packets a second, like 1000, 50k or 2M
  tap:NAME         a TAP of the host, made if it is not there (CAP_NET_ADMIN) and
                   otherwise attached: one that is made for a user needs no right
    queues=N       its queues (default 1); above 1 it must be multi_queue
    fd=N           it is open as this fd, which needs no right either
  af_packet:IF     any interface of the host (CAP_NET_RAW), which sees all its frames
    queues=N       rings to spread the flows over, 1 to 128 (default 1)
    block=SIZE     bytes of a block of a ring, a power of two, 64k to 16M (default 1M)
    blocks=N       blocks of each ring, 2 to 4096 (default 32)
  null             receive nothing, discard what is sent
  Any kind of port, with --forward bridge:
    vlan=N         frames without a tag, of this VLAN (1 to 4094)
    trunk=N+N      frames with a tag, of these VLANs
    isolated       talks to no other isolated port
    macs=N         most addresses that are learned there (default 1024)
    mac=MAC+MAC    addresses that are there and nowhere else

Ports are paired in this order: first with second, third with fourth;
one port alone is paired with itself.";

const KINDS: &str = "vhost:PATH, tap:NAME, af_packet:IF, pcap:FILE and null";

/// What is wrong with a specification.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// No such kind.
    #[error("there is no port kind '{0}'; kinds are {KINDS}")]
    Kind(String),
    /// No such key for this kind.
    #[error("a {kind} port has no key '{key}'; {keys}")]
    Key {
        /// The port's kind.
        kind: &'static str,
        /// As given.
        key: String,
        /// Those it has.
        keys: &'static str,
    },
    /// A kind that needs a target has none.
    #[error("a {0} port needs a target: {0}:{1}")]
    NoTarget(&'static str, &'static str),
    /// A kind without a target has one.
    #[error("a null port has no target; write null alone")]
    Target,
    /// A key is given twice.
    #[error("{0} is given twice; give it once")]
    Twice(String),
    /// A key that needs a value has none.
    #[error("{0}= needs a value; {1}")]
    NoValue(&'static str, &'static str),
    /// A key's value is refused.
    #[error("{key}={value}: {right}")]
    Value {
        /// The key.
        key: &'static str,
        /// As given.
        value: String,
        /// What would be right.
        right: ValueError,
    },
    /// The value of a key of the bridge's is refused.
    #[error("{key}={value}: {right}")]
    Bridge {
        /// The key.
        key: String,
        /// As given.
        value: String,
        /// What would be right.
        right: ValueError,
    },
    /// Not a socket's path.
    #[error("{0}")]
    Path(ValueError),
    /// Not an interface's name.
    #[error("'{0}' is no name of an interface; that is 1 to 15 bytes without blanks and slashes")]
    Interface(String),
    /// An fd is one queue.
    #[error("fd= is one queue; leave out queues=, or the fd")]
    OneFd,
    /// Not octal.
    #[error("mode={0}: an octal number up to 0777, like 0660")]
    Mode(String),
    /// Nobody has this name.
    #[error(
        "owner={0}: there is no {1} '{2}'; a name that exists or a number, like qemu:kvm or 107:78"
    )]
    Owner(String, &'static str, String),
    /// Only a socket file that we create has permissions from us.
    #[error("mode= and owner= are for a socket that is listened on; leave them out with client")]
    ClientFile,
}

/// Who there is: the texts of `/etc/passwd` and `/etc/group`.
#[derive(Debug, Default)]
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Of this machine; a file that cannot be read has nobody in it.
    fn of_machine() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Accounts { passwd: read("/etc/passwd"), group: read("/etc/group") }
    }

    /// The number of `name` in a file whose lines are `name:password:number:…`.
    fn number(file: &str, name: &str) -> Option<u32> {
        let fields = |line: &str| {
            let mut fields = line.split(':');
            (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
        };
        name.parse().ok().or_else(|| file.lines().find_map(fields))
    }

    /// `USER[:GROUP]`, names or numbers.
    fn owner(&self, text: &str) -> Result<(u32, Option<u32>), PortError> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let nobody = |what, who: &str| PortError::Owner(text.into(), what, who.into());
        let uid = Self::number(&self.passwd, user).ok_or_else(|| nobody("user", user))?;
        let gid = |name| Self::number(&self.group, name).ok_or_else(|| nobody("group", name));
        Ok((uid, group.map(gid).transpose()?))
    }
}

/// One port of the command line.
pub fn parse(text: &str) -> Result<PortSpec, PortError> {
    parse_with(text, Accounts::of_machine)
}

/// As [`parse`], but only to check `text` and to make its paths independent of the folder we
/// are in.
pub fn absolute(text: &str) -> Result<String, PortError> {
    let there = |path: &str| {
        std::path::absolute(path).map_or_else(|_| path.into(), |path| path.display().to_string())
    };
    parse(text)?;
    let part = |(i, part): (usize, &str)| match part.split_once(if i == 0 { ':' } else { '=' }) {
        Some((key @ ("vhost" | "pcap"), path)) if i == 0 => format!("{key}:{}", there(path)),
        Some(("out", path)) => format!("out={}", there(path)),
        _ => part.to_string(),
    };
    Ok(text.split(',').enumerate().map(part).collect::<Vec<_>>().join(","))
}

fn parse_with(text: &str, accounts: fn() -> Accounts) -> Result<PortSpec, PortError> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let (kind, target) = name.split_once(':').unwrap_or((name, ""));
    let pairs: Vec<(&str, Option<&str>)> = parts
        .map(|part| part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value))))
        .collect();
    for (i, (key, _)) in pairs.iter().enumerate() {
        if pairs[..i].iter().any(|(earlier, _)| earlier == key) {
            return Err(PortError::Twice((*key).into()));
        }
    }
    let mut bridge = BridgeKeys::default();
    let mut others = Vec::new();
    for &(key, value) in &pairs {
        let (text, found) = (value.unwrap_or_default(), bridge.take(key, value));
        let wrong = |right| PortError::Bridge { key: key.into(), value: text.into(), right };
        if !found.map_err(wrong)? {
            others.push((key, value));
        }
    }
    let pairs = others;
    let kind = match kind {
        "vhost" => PortKind::Vhost(vhost(target, &pairs, accounts)?),
        "pcap" => PortKind::Pcap(pcap(target, &pairs)?),
        "tap" => PortKind::Tap(tap_port(target, &pairs)?),
        "af_packet" => PortKind::AfPacket(af_packet(target, &pairs)?),
        "null" => null(name, &pairs)?,
        other => return Err(PortError::Kind(other.into())),
    };
    Ok(PortSpec { name: name.into(), kind, bridge })
}

type Pairs<'a> = [(&'a str, Option<&'a str>)];

fn vhost(target: &str, pairs: &Pairs, accounts: fn() -> Accounts) -> Result<VhostSpec, PortError> {
    if target.is_empty() {
        return Err(PortError::NoTarget("vhost", "PATH"));
    }
    let mut spec = VhostSpec {
        path: values::socket_path(target).map_err(PortError::Path)?,
        client: false,
        queues: 1,
        offer: Offer::ALL,
        mode: None,
        owner: None,
    };
    for &(key, value) in pairs {
        match key {
            "client" => spec.client = flag("client", value)?,
            "queues" => spec.queues = checked("queues", value, values::queues)?,
            "mrg_rxbuf" => spec.offer.mrg_rxbuf = flag("mrg_rxbuf", value)?,
            "csum" => spec.offer.csum = flag("csum", value)?,
            "tso" => spec.offer.tso = flag("tso", value)?,
            "mode" => spec.mode = Some(mode(needed("mode", value, "like 0660")?)?),
            "owner" => {
                let owner = needed("owner", value, "USER or USER:GROUP")?;
                spec.owner = Some(accounts().owner(owner)?);
            }
            _ => {
                let keys = "keys are client, queues=, mrg_rxbuf=, csum=, tso=, mode= and owner=";
                return Err(PortError::Key { kind: "vhost", key: key.into(), keys });
            }
        }
    }
    // What is cut must be summed.
    spec.offer.tso &= spec.offer.csum;
    if spec.client && (spec.mode.is_some() || spec.owner.is_some()) {
        return Err(PortError::ClientFile);
    }
    Ok(spec)
}

fn pcap(target: &str, pairs: &Pairs) -> Result<PcapSpec, PortError> {
    if target.is_empty() {
        return Err(PortError::NoTarget("pcap", "FILE"));
    }
    let mut spec = PcapSpec { input: target.into(), output: None, repeat: false, rate: None };
    for &(key, value) in pairs {
        match key {
            "out" => spec.output = Some(PathBuf::from(needed("out", value, "the file to write")?)),
            "loop" => spec.repeat = flag("loop", value)?,
            "rate" => spec.rate = Some(checked("rate", value, values::rate)?),
            _ => {
                let keys = "keys are out=, loop and rate=";
                return Err(PortError::Key { kind: "pcap", key: key.into(), keys });
            }
        }
    }
    Ok(spec)
}

fn tap_port(target: &str, pairs: &Pairs) -> Result<TapSpec, PortError> {
    let interface = interface("tap", "NAME", target)?;
    let mut spec = TapSpec { interface, queues: 1, fd: None };
    for &(key, value) in pairs {
        match key {
            "queues" => spec.queues = checked("queues", value, values::queues)?,
            "fd" => spec.fd = Some(checked("fd", value, values::fd)?),
            _ => {
                let keys = "keys are queues= and fd=";
                return Err(PortError::Key { kind: "tap", key: key.into(), keys });
            }
        }
    }
    if spec.fd.is_some() && spec.queues > 1 {
        return Err(PortError::OneFd);
    }
    Ok(spec)
}

fn af_packet(target: &str, pairs: &Pairs) -> Result<AfPacketSpec, PortError> {
    let interface = interface("af_packet", "IF", target)?;
    let ring = RingSize { block: 1 << 20, blocks: 32 };
    let mut spec = AfPacketSpec { interface, queues: 1, ring };
    for &(key, value) in pairs {
        match key {
            "queues" => spec.queues = checked("queues", value, values::queues)?,
            "block" => spec.ring.block = checked("block", value, values::block)?,
            "blocks" => spec.ring.blocks = checked("blocks", value, values::blocks)?,
            _ => {
                let keys = "keys are queues=, block= and blocks=";
                return Err(PortError::Key { kind: "af_packet", key: key.into(), keys });
            }
        }
    }
    Ok(spec)
}

fn interface(kind: &'static str, what: &'static str, name: &str) -> Result<String, PortError> {
    if name.is_empty() {
        return Err(PortError::NoTarget(kind, what));
    }
    if !tap::is_name(name) {
        return Err(PortError::Interface(name.into()));
    }
    Ok(name.into())
}

fn null(name: &str, pairs: &Pairs) -> Result<PortKind, PortError> {
    if name != "null" {
        return Err(PortError::Target);
    }
    match pairs {
        [] => Ok(PortKind::Null),
        [(key, _), ..] => {
            let key = (*key).into();
            Err(PortError::Key { kind: "null", key, keys: "it has none" })
        }
    }
}

/// `key`, `key=on` or `key=off`.
fn flag(key: &'static str, value: Option<&str>) -> Result<bool, PortError> {
    value.map_or(Ok(true), |value| checked(key, Some(value), values::switch))
}

fn needed<'a>(
    key: &'static str,
    value: Option<&'a str>,
    right: &'static str,
) -> Result<&'a str, PortError> {
    value.filter(|value| !value.is_empty()).ok_or(PortError::NoValue(key, right))
}

fn checked<T>(
    key: &'static str,
    value: Option<&str>,
    parse: fn(&str) -> Result<T, ValueError>,
) -> Result<T, PortError> {
    let value = value.unwrap_or_default();
    parse(value).map_err(|right| PortError::Value { key, value: value.into(), right })
}

fn mode(text: &str) -> Result<u32, PortError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or_else(|| PortError::Mode(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0::/:/bin/sh\nqemu:x:107:107::/:/bin/false\nodd\n".into(),
            group: "kvm:x:78:qemu\n".into(),
        }
    }

    fn good(text: &str) -> PortSpec {
        parse_with(text, accounts).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn vhost_port(text: &str) -> VhostSpec {
        match good(text).kind {
            PortKind::Vhost(spec) => spec,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn vhost_ports_have_defaults_and_keys() {
        let plain = VhostSpec {
            path: "/tmp/vm0.sock".into(),
            client: false,
            queues: 1,
            offer: Offer::ALL,
            mode: None,
            owner: None,
        };
        assert_eq!(vhost_port("vhost:/tmp/vm0.sock"), plain);
        assert_eq!(
            vhost_port(
                "vhost:/tmp/vm0.sock,queues=4,mrg_rxbuf=off,csum=off,mode=0660,owner=qemu:kvm"
            ),
            VhostSpec {
                queues: 4,
                offer: Offer { mrg_rxbuf: false, csum: false, tso: false },
                mode: Some(0o660),
                owner: Some((107, Some(78))),
                ..plain.clone()
            }
        );
        assert_eq!(
            vhost_port("vhost:/tmp/vm0.sock,client,mrg_rxbuf=on"),
            VhostSpec { client: true, ..plain }
        );
        assert_eq!(vhost_port("vhost:a:b").path, PathBuf::from("a:b"));
    }

    #[test]
    fn owners_are_names_or_numbers() {
        let owners = [
            ("root", (0, None)),
            ("qemu:78", (107, Some(78))),
            ("1000", (1000, None)),
            ("1000:kvm", (1000, Some(78))),
        ];
        for (text, owner) in owners {
            assert_eq!(vhost_port(&format!("vhost:a,owner={text}")).owner, Some(owner), "{text}");
        }
    }

    #[test]
    fn pcap_and_null_ports() {
        let spec = PcapSpec { input: "in.pcap".into(), output: None, repeat: false, rate: None };
        assert_eq!(good("pcap:in.pcap").kind, PortKind::Pcap(spec.clone()));
        let full =
            PcapSpec { output: Some("out.pcap".into()), repeat: true, rate: Some(50_000), ..spec };
        assert_eq!(good("pcap:in.pcap,out=out.pcap,loop,rate=50k").kind, PortKind::Pcap(full));
        assert_eq!(
            good("null"),
            PortSpec { name: "null".into(), kind: PortKind::Null, bridge: BridgeKeys::default() }
        );
    }

    #[test]
    fn the_name_ends_at_the_first_comma() {
        assert_eq!(good("vhost:/tmp/a.sock,queues=2").name, "vhost:/tmp/a.sock");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let long = format!("vhost:{}", "x".repeat(108));
        let no_key = "a vhost port has no key 'queue'; \
                      keys are client, queues=, mrg_rxbuf=, csum=, tso=, mode= and owner=";
        let client = "mode= and owner= are for a socket that is listened on; \
                      leave them out with client";
        let cases = [
            (
                "tun:x",
                "there is no port kind 'tun'; kinds are vhost:PATH, tap:NAME, af_packet:IF, pcap:FILE and null",
            ),
            (
                "/a.sock",
                "there is no port kind '/a.sock'; kinds are vhost:PATH, tap:NAME, af_packet:IF, pcap:FILE and null",
            ),
            (
                "",
                "there is no port kind ''; kinds are vhost:PATH, tap:NAME, af_packet:IF, pcap:FILE and null",
            ),
            ("vhost", "a vhost port needs a target: vhost:PATH"),
            ("vhost:", "a vhost port needs a target: vhost:PATH"),
            ("pcap:,loop", "a pcap port needs a target: pcap:FILE"),
            ("null:x", "a null port has no target; write null alone"),
            ("null,loop", "a null port has no key 'loop'; it has none"),
            ("vhost:a,queue=2", no_key),
            ("pcap:a,in=b", "a pcap port has no key 'in'; keys are out=, loop and rate="),
            ("vhost:a,queues=2,queues=2", "queues is given twice; give it once"),
            ("vhost:a,queues=0", "queues=0: a number from 1 to 128"),
            ("vhost:a,queues=129", "queues=129: a number from 1 to 128"),
            ("vhost:a,queues", "queues=: a number from 1 to 128"),
            ("vhost:a,mrg_rxbuf=no", "mrg_rxbuf=no: on or off"),
            ("vhost:a,mode=0888", "mode=0888: an octal number up to 0777, like 0660"),
            ("vhost:a,mode=1777", "mode=1777: an octal number up to 0777, like 0660"),
            ("vhost:a,mode=rw", "mode=rw: an octal number up to 0777, like 0660"),
            ("vhost:a,mode=", "mode= needs a value; like 0660"),
            ("vhost:a,owner", "owner= needs a value; USER or USER:GROUP"),
            ("vhost:a,client,mode=0600", client),
            ("pcap:a,out=", "out= needs a value; the file to write"),
            (&long, "the path of a socket has 1 to 107 bytes"),
            (
                "vhost:a,owner=joe",
                "owner=joe: there is no user 'joe'; \
                 a name that exists or a number, like qemu:kvm or 107:78",
            ),
            (
                "vhost:a,owner=qemu:joe",
                "owner=qemu:joe: there is no group 'joe'; \
                 a name that exists or a number, like qemu:kvm or 107:78",
            ),
        ];
        for (text, expected) in cases {
            let error = parse_with(text, accounts).unwrap_err();
            assert_eq!(error.to_string(), expected, "{text}");
        }
    }
}
