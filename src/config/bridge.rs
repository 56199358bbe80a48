//! What a port is in `--forward bridge`: keys that every kind of port has.
//!
//! Promises: pure; an error says what would be right.

#![forbid(unsafe_code)]

use super::values::{self, ValueError};
use crate::wire::Mac;
use std::sync::Arc;

/// Learned addresses of a port, unless it is said otherwise.
const QUOTA: u32 = 1024;

/// The VLANs of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vlan {
    /// It knows of none: frames pass as they are, to others like it.
    None,
    /// Frames without a tag, of this VLAN.
    Access(u16),
    /// Frames with a tag, of these VLANs.
    Trunk(Arc<[u16]>),
}

impl Vlan {
    /// The VLAN of frames without a tag.
    pub fn access(&self) -> Option<u16> {
        if let Vlan::Access(vid) = self { Some(*vid) } else { None }
    }
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeKeys {
    /// Its VLANs.
    pub vlan: Vlan,
    /// It talks to no other isolated port.
    pub isolated: bool,
    /// Most addresses that are learned there.
    pub quota: u32,
    /// Addresses that are there and nowhere else.
    pub macs: Vec<Mac>,
}

impl Default for BridgeKeys {
    fn default() -> Self {
        BridgeKeys { vlan: Vlan::None, isolated: false, quota: QUOTA, macs: Vec::new() }
    }
}

impl BridgeKeys {
    /// Take `key` if it is one of these. `Ok(false)`: it is not.
    pub fn take(&mut self, key: &str, value: Option<&str>) -> Result<bool, ValueError> {
        let text = value.unwrap_or_default();
        match key {
            "vlan" if matches!(self.vlan, Vlan::Trunk(_)) => return Err(ValueError::VlanAndTrunk),
            "vlan" => self.vlan = Vlan::Access(values::vid(text)?),
            "trunk" if matches!(self.vlan, Vlan::Access(_)) => {
                return Err(ValueError::VlanAndTrunk);
            }
            "trunk" => {
                let vids: Result<Vec<_>, _> = text.split('+').map(values::vid).collect();
                self.vlan = Vlan::Trunk(vids?.into());
            }
            "isolated" => self.isolated = value.map_or(Ok(true), values::switch)?,
            "macs" => self.quota = values::number(text, 0..=16384)? as u32,
            "mac" => {
                let macs: Result<Vec<_>, _> = text.split('+').map(values::unicast).collect();
                self.macs = macs?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken() {
        let mut keys = BridgeKeys::default();
        let given = [
            ("isolated", None),
            ("macs", Some("7")),
            ("mac", Some("52:54:00:00:00:01+52:54:00:00:00:0A")),
            ("trunk", Some("10+4094")),
        ];
        for (key, value) in given {
            assert_eq!(keys.take(key, value), Ok(true), "{key}");
        }
        let vlan = Vlan::Trunk([10, 4094].into());
        let macs = vec![[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 10]];
        assert_eq!(keys, BridgeKeys { vlan, isolated: true, quota: 7, macs });
        assert_eq!(keys.take("queues", Some("2")), Ok(false));
        let wrong = [
            ("vlan", "0"),
            ("vlan", "4095"),
            ("trunk", ""),
            ("trunk", "1+"),
            ("mac", "01:00:00:00:00:00"),
            ("mac", "5"),
            ("macs", "x"),
            ("isolated", "no"),
        ];
        for (key, value) in wrong {
            assert!(BridgeKeys::default().take(key, Some(value)).is_err(), "{key}={value}");
        }
        assert!(keys.take("vlan", Some("10")).is_err(), "both");
    }
}
