//! Addresses that mails may name. Without a list, a client that may enqueue mails can write to any address in the name
//! of any other.

use lettre::message::Mailbox;

/// Addresses that mails may name: listed domains and listed single addresses. Without a list, all addresses are
/// allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// The entries, in lower case.
    listed: Vec<String>,
}

impl AllowedAddresses {
    /// Each entry is a domain, which does not include its subdomains, or a whole address.
    #[must_use]
    pub fn new(listed: &[String]) -> Self {
        Self { listed: listed.iter().map(|entry| entry.to_ascii_lowercase()).collect() }
    }

    /// True when a mail may name this address.
    #[must_use]
    pub fn allows(&self, mailbox: &Mailbox) -> bool {
        let address: &str = mailbox.email.as_ref();
        let address = address.to_ascii_lowercase();
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        self.listed.is_empty() || self.listed.iter().any(|entry| *entry == address || entry == domain)
    }

    /// The text of a refusal. `setting` is the name of the setting that holds the list.
    pub(crate) fn refusal(&self, setting: &str) -> String {
        let few = self.listed.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if self.listed.len() > 5 { ", …" } else { "" };
        format!("is not among the addresses that {setting} allows: {few}{more}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::mailbox;
    use super::*;

    #[test]
    fn domains_and_addresses_are_allowed_as_they_are_listed_and_nothing_beside_them() {
        let allowed = AllowedAddresses::new(&["Shop.example".to_owned(), "ceo@example.com".to_owned()]);
        for (text, may) in [
            ("a@shop.example", true),
            ("Ann <A@SHOP.EXAMPLE>", true),
            ("ceo@example.com", true),
            ("ceo@shop.example <eve@evil.example>", false),
            ("x.ceo@example.com", false),
            ("a@sub.shop.example", false),
            ("a@evilshop.example", false),
            ("a@shop.example.evil", false),
        ] {
            let Ok(mailbox) = mailbox(text) else {
                assert!(!may, "{text}");
                continue;
            };
            assert_eq!(allowed.allows(&mailbox), may, "{text}");
            assert!(AllowedAddresses::default().allows(&mailbox));
        }
    }
}
