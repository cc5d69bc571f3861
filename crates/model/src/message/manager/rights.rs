//! Who may ask the manager for what. docs/PROTOCOL.md has the table.

use super::request::ManagerRequest as Request;
use crate::id::BenefactorId;
use crate::message::handshake::Role;

impl Request {
    /// Whether a caller in this role may ask for it.
    pub fn may_be_asked_by(&self, role: Role) -> bool {
        match self {
            Self::Register { .. }
            | Self::BeginInventory { .. }
            | Self::Inventory { .. }
            | Self::Heartbeat { .. }
            | Self::Orders { .. }
            | Self::Journal { .. } => role == Role::Benefactor,
            Self::Collect { .. }
            | Self::Forget { .. }
            | Self::AcceptOlderStore
            | Self::Members
            | Self::Revoke { .. }
            | Self::BeginBackup
            | Self::ReadBackup { .. } => role == Role::Operator,
            // The owner of a disk may see how the pool is.
            Self::Status | Self::Space => matches!(role, Role::Client | Role::Operator | Role::Benefactor),
            _ => matches!(role, Role::Client | Role::Operator),
        }
    }

    /// The benefactor in whose name it is asked, once that has registered.
    pub fn benefactor(&self) -> Option<BenefactorId> {
        match self {
            Self::BeginInventory { id, .. }
            | Self::Inventory { id, .. }
            | Self::Heartbeat { id, .. }
            | Self::Orders { id, .. }
            | Self::Journal { id, .. } => Some(*id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_its_own_requests_and_an_operator_those_of_clients() {
        let beat = Request::Orders { id: BenefactorId(1), registration: 2 };
        let of = |request: &Request| {
            let roles = [Role::Client, Role::Benefactor, Role::Manager, Role::Operator];
            roles.into_iter().filter(|role| request.may_be_asked_by(*role)).collect::<Vec<_>>()
        };
        assert_eq!(of(&beat), [Role::Benefactor]);
        assert_eq!(of(&Request::Benefactors), [Role::Client, Role::Operator]);
        assert_eq!(of(&Request::Status), [Role::Client, Role::Benefactor, Role::Operator]);
        assert_eq!(of(&Request::Collect { dry_run: true }), [Role::Operator]);
        assert_eq!((beat.benefactor(), Request::Status.benefactor()), (Some(BenefactorId(1)), None));
    }
}
