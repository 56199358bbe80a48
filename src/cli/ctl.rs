//! `ringbridge ctl`: its flags.
//!
//! Promises: see the module above.

#![forbid(unsafe_code)]

use super::values;
use crate::config::port;
use crate::ctl::{CtlArgs, Request};
use std::path::PathBuf;

/// Ask a bridge that runs, or tell it
///
/// Without --control, the only one whose socket is in the folder ringbridge of the user's runtime
/// directory.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct CtlFlags {
    /// The bridge's control socket
    #[arg(long, value_name = "PATH", global = true, value_parser = values::socket_path)]
    control: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    request: CtlCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CtlCommand {
    /// List the ports: link, features, memory, rings
    Ports,
    /// Print the totals, and the rates of this moment
    Stats,
    /// The addresses that --forward bridge knows
    Macs,
    /// Add or delete a port
    #[command(subcommand, arg_required_else_help = false)]
    Port(PortCommand),
    /// Say whether a port's link is up, and why
    Link {
        /// The port's name or number
        name: String,
    },
    /// Count totals from now on
    Clear,
    /// End the bridge, as SIGTERM does
    Stop,
    /// Follow what happens, a JSON object a line, until the bridge ends
    Events,
}

#[derive(Debug, clap::Subcommand)]
enum PortCommand {
    /// Add a port, as `run -p` does
    Add {
        #[arg(value_name = "PORT", value_parser = port::absolute, help = port::HELP)]
        spec: String,
    },
    /// Delete a port
    Del {
        /// Its name or number, as `ports` has it
        name: String,
    },
}

impl CtlFlags {
    /// As a request.
    pub fn check(self) -> CtlArgs {
        let text = !self.json;
        let request = match self.request {
            CtlCommand::Ports => Request::Ports { text },
            CtlCommand::Stats => Request::Stats { text },
            CtlCommand::Macs => Request::Macs { text },
            CtlCommand::Port(PortCommand::Add { spec }) => Request::PortAdd { spec },
            CtlCommand::Port(PortCommand::Del { name }) => Request::PortDel { name },
            CtlCommand::Link { name } => Request::Link { name, text },
            CtlCommand::Clear => Request::Clear,
            CtlCommand::Stop => Request::Stop,
            CtlCommand::Events => Request::Events,
        };
        CtlArgs { control: self.control, json: self.json, request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{complaint, outcome};

    fn args(line: &str) -> CtlArgs {
        match outcome(line).map(|invocation| invocation.command) {
            Ok(Command::Ctl(args)) => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn each_command_is_a_request() {
        let spec = "vhost:/tmp/a.sock,queues=2".to_string();
        let name = "null".to_string();
        let cases = [
            ("ports", Request::Ports { text: true }),
            ("ports --json", Request::Ports { text: false }),
            ("--json stats", Request::Stats { text: false }),
            ("macs", Request::Macs { text: true }),
            ("port add vhost:/tmp/a.sock,queues=2", Request::PortAdd { spec }),
            ("port del null", Request::PortDel { name: name.clone() }),
            ("link null", Request::Link { name, text: true }),
            ("clear", Request::Clear),
            ("stop", Request::Stop),
            ("events", Request::Events),
        ];
        for (line, expected) in cases {
            assert_eq!(args(&format!("ctl {line}")).request, expected, "{line}");
        }
        let here = args("ctl clear --control /tmp/c.sock");
        assert_eq!((here.control, here.json), (Some("/tmp/c.sock".into()), false));
    }

    #[test]
    fn paths_are_the_callers() {
        let cwd = std::env::current_dir().unwrap();
        let Request::PortAdd { spec } = args("ctl port add pcap:in.pcap,loop,out=o.pcap").request
        else {
            panic!()
        };
        let cwd = cwd.display();
        assert_eq!(spec, format!("pcap:{cwd}/in.pcap,loop,out={cwd}/o.pcap"));
    }

    #[test]
    fn what_is_wrong_is_said_before_anybody_is_asked() {
        let spec = complaint("ctl port add tun:x");
        assert!(spec.contains("there is no port kind 'tun'"), "{spec}");
        let none = complaint("ctl");
        assert!(none.contains("requires a subcommand"), "{none}");
    }
}
