//! The ports of a bridge as it sees them: who may talk to whom, and in which VLANs.
//!
//! Promises: pure; made anew whenever a port comes or goes.

#![forbid(unsafe_code)]

use super::super::PortId;
use crate::config::{BridgeKeys, Vlan};

/// What is to be done to a frame's tag where it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagEdit {
    /// Nothing.
    Keep,
    /// It has one, and leaves without.
    Pop,
    /// It has none, and leaves with this one.
    Push(u16),
    /// It has one of no VLAN (a priority), and leaves with this one.
    Set(u16),
}

/// A frame's VLAN as a port has received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagging {
    /// The VLAN; 0 for ports without VLANs.
    pub vid: u16,
    /// There is a tag.
    pub tagged: bool,
    /// And it is of no VLAN.
    pub priority: bool,
}

/// All ports there are.
#[derive(Debug, Clone, Default)]
pub struct Ports(Vec<Option<BridgeKeys>>);

impl Ports {
    /// Port `port` has come, or gone.
    pub fn set(&mut self, port: PortId, keys: Option<BridgeKeys>) {
        if self.0.len() <= port {
            self.0.resize(port + 1, None);
        }
        self.0[port] = keys;
    }

    /// The keys of `port`, if it is there.
    #[inline]
    pub fn get(&self, port: PortId) -> Option<&BridgeKeys> {
        self.0.get(port)?.as_ref()
    }

    /// The VLAN of a frame that `port` receives with this tag (TCI), if it takes it.
    #[inline]
    pub fn enter(keys: &BridgeKeys, tag: Option<u16>) -> Option<Tagging> {
        let (tagged, tag_vid) = (tag.is_some(), tag.unwrap_or(0) & 0xfff);
        let priority = tagged && tag_vid == 0;
        let vid = match &keys.vlan {
            Vlan::None => Some(0),
            Vlan::Access(vid) => (tag_vid == 0).then_some(*vid),
            Vlan::Trunk(vids) => (tag_vid != 0 && vids.contains(&tag_vid)).then_some(tag_vid),
        };
        vid.map(|vid| Tagging { vid, tagged, priority })
    }

    /// How a frame that came from `from` leaves by `to`, if it may.
    #[inline]
    pub fn leave(&self, from: &BridgeKeys, to: PortId, frame: Tagging) -> Option<TagEdit> {
        let keys = self.get(to)?;
        if from.isolated && keys.isolated {
            return None;
        }
        match &keys.vlan {
            Vlan::None => (frame.vid == 0).then_some(TagEdit::Keep),
            Vlan::Access(vid) if *vid != frame.vid => None,
            Vlan::Access(_) => Some(if frame.tagged { TagEdit::Pop } else { TagEdit::Keep }),
            Vlan::Trunk(vids) if !vids.contains(&frame.vid) => None,
            Vlan::Trunk(_) if frame.priority => Some(TagEdit::Set(frame.vid)),
            Vlan::Trunk(_) if frame.tagged => Some(TagEdit::Keep),
            Vlan::Trunk(_) => Some(TagEdit::Push(frame.vid)),
        }
    }

    /// Where a frame that came from port `number` goes that is for everybody.
    pub fn flood(
        &self,
        number: PortId,
        from: &BridgeKeys,
        frame: Tagging,
    ) -> impl Iterator<Item = (PortId, TagEdit)> {
        let others = (0..self.0.len()).filter(move |&to| to != number);
        others.filter_map(move |to| Some((to, self.leave(from, to, frame)?)))
    }
}
