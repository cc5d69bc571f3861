//! Where the benefactors of a host serve: at fixed ports, for firewalls, and at an address that others reach, for gateways.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::LISTEN_DEFAULT;
use crate::exit::{CommandError, Outcome};
use crate::settings::check_address;

/// The addresses that are given; others stay as they were.
#[derive(Args, Debug)]
pub struct ServingArguments {
    /// Where this host's benefactor serves, such as 0.0.0.0:7401; further ones take the ports after that [default: any port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where others reach it, HOST:PORT, if that is another address: behind a gateway that passes the port on
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
}

/// The same at `up`, whose `--listen` is where a manager serves.
#[derive(Args, Debug)]
pub struct UpServingArguments {
    /// Where this host's benefactor serves, such as 0.0.0.0:7401; further ones take the ports after that [default: any port]
    #[arg(long, value_name = "ADDRESS")]
    benefactor_listen: Option<String>,
    /// Where others reach it, HOST:PORT, if that is another address: behind a gateway that passes the port on
    #[arg(long, value_name = "ADDRESS")]
    benefactor_advertise: Option<String>,
}

impl UpServingArguments {
    /// As `benefactor join` takes them.
    pub fn of_benefactors(&self) -> ServingArguments {
        ServingArguments {
            listen: self.benefactor_listen.clone(),
            advertise: self.benefactor_advertise.clone(),
        }
    }
}

/// Where the benefactors of a host serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Serving {
    listen: Option<String>,
    advertise: Option<String>,
}

impl ServingArguments {
    /// Whether anything is said.
    pub fn is_any(&self) -> bool {
        self.listen.is_some() || self.advertise.is_some()
    }

    /// Where so many benefactors serve from now on.
    ///
    /// # Errors
    /// They can't serve there, or not be reached.
    pub fn over(&self, before: &Serving, benefactors: u16) -> Outcome<Serving> {
        let serving = Serving {
            listen: self.listen.clone().or_else(|| before.listen.clone()),
            advertise: self.advertise.clone().or_else(|| before.advertise.clone()),
        };
        let given = [("--listen", &serving.listen), ("--advertise", &serving.advertise)];
        for (flag, address) in given {
            let Some(address) = address else { continue };
            check_port(flag, address, benefactors)?;
        }
        if let Some(address) = &serving.advertise {
            check_advertised(address, serving.listen.is_some())?;
        }
        Ok(serving)
    }
}

impl Serving {
    /// The arguments of the benefactor with this index.
    pub fn arguments(&self, index: u16) -> Vec<String> {
        let listen =
            self.listen.as_ref().map_or_else(|| LISTEN_DEFAULT.to_owned(), |listen| nth(listen, index));
        let mut all = vec!["--listen".to_owned(), listen];
        all.extend(self.advertise.iter().flat_map(|told| ["--advertise".to_owned(), nth(told, index)]));
        all
    }
}

/// Refuses an address of no port, or of one behind which there are too few for all benefactors.
fn check_port(flag: &str, address: &str, benefactors: u16) -> Outcome {
    check_address(flag, address)?;
    let refuse = |cause: &str| {
        Err(CommandError::usage(format_args!("{flag} {address}"), cause, "such as 0.0.0.0:7401"))
    };
    match port_of(address) {
        None => refuse("it is no address of the network"),
        Some(0) => refuse("it names no port"),
        Some(port) if port.checked_add(benefactors.saturating_sub(1)).is_none() => {
            refuse("there are too few ports after it for all benefactors")
        }
        Some(_) => Ok(()),
    }
}

/// Refuses an address that no other machine reaches.
pub fn check_advertised(address: &str, has_fixed_port: bool) -> Outcome {
    let refuse = |cause: &str, next: &str| {
        Err(CommandError::usage(format_args!("--advertise {address}"), cause, next))
    };
    let host = address.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    if host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_unspecified()) {
        return refuse("it names no machine", "give the address at which others reach this host");
    }
    if !has_fixed_port {
        let next = "say with `--listen 0.0.0.0:PORT` to which port here it leads";
        return refuse("it leads to a port that is another one at each start", next);
    }
    Ok(())
}

fn port_of(address: &str) -> Option<u16> {
    let (_, port) = address.rsplit_once(':').filter(|_| !address.starts_with("unix:"))?;
    port.parse().ok()
}

/// The address with the port that the benefactor with this index has.
fn nth(address: &str, index: u16) -> String {
    let (Some((host, _)), Some(port)) = (address.rsplit_once(':'), port_of(address)) else {
        return address.to_owned();
    };
    // Looked at when it was written down.
    format!("{host}:{}", port.saturating_add(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(listen: Option<&str>, advertise: Option<&str>, benefactors: u16) -> Outcome<Serving> {
        let [listen, advertise] = [listen, advertise].map(|address| address.map(str::to_owned));
        ServingArguments { listen, advertise }.over(&Serving::default(), benefactors)
    }

    #[test]
    fn benefactors_of_one_host_take_ports_one_after_the_other_and_others_are_told_so() {
        let two = serving(Some("0.0.0.0:7401"), Some("gate.example.org:9001"), 2).unwrap();
        let told = ["--listen", "0.0.0.0:7402", "--advertise", "gate.example.org:9002"];
        assert_eq!(two.arguments(1), told);
        assert_eq!(serving(None, None, 2).unwrap().arguments(1), ["--listen", LISTEN_DEFAULT]);
        let kept = ServingArguments { listen: None, advertise: None }.over(&two, 2).unwrap();
        assert_eq!(kept, two);
    }

    #[test]
    fn addresses_that_nobody_reaches_are_refused() {
        for (listen, advertise) in [
            (Some("0.0.0.0:0"), None),
            (Some("unix:/srv/socket"), None),
            (Some("0.0.0.0:65535"), None),
            (Some("0.0.0.0:7401"), Some("0.0.0.0:7401")),
            (Some("0.0.0.0:7401"), Some("[::]:7401")),
            (None, Some("gate.example.org:9001")),
            (Some("7401"), None),
        ] {
            assert!(serving(listen, advertise, 2).is_err(), "{listen:?} {advertise:?}");
        }
    }
}
