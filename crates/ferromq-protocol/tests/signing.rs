//! Signatures: known answers of RocketMQ's own classes, and what a change of a request does.

use bytes::Bytes;
use ferromq_protocol::{
    remoting::{Fields, RemotingCommand},
    signing::{Authorization, SIGNATURE, Signer},
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_signed_request_is_verified_until_a_value_changes(
        fields in prop::collection::btree_map("[A-Za-z_]{1,8}", "[ -~é]{0,12}", 0..8),
        body: Vec<u8>,
        secret in ".{0,80}",
        changed: prop::sample::Index,
    ) {
        let body = Bytes::from(body);
        let mut command = RemotingCommand::request(310, fields.into_iter().collect::<Fields>(), body);
        let signer = Signer::new(&secret);
        signer.sign("ada", &mut command);
        prop_assert!(signer.verifies(&command));
        prop_assert!(!Signer::new(&format!("{secret}x")).verifies(&command));
        let place = changed.index(command.fields.len());
        let other = command.fields.iter().enumerate().map(|(index, (name, value))| {
            (name, if index == place { format!("{value}x") } else { value.to_owned() })
        });
        let other = RemotingCommand { fields: other.collect(), ..command.clone() };
        prop_assert!(!signer.verifies(&other));
        signer.sign("ada", &mut command);
        prop_assert_eq!(command.fields.iter().filter(|(name, _)| *name == SIGNATURE).count(), 1);
        prop_assert!(signer.verifies(&command));
    }

    #[test]
    fn any_header_is_read_or_refused(header in ".{0,80}", key in "[a-z]{1,9}", hex in "[0-9A-Fa-fg]{38,42}") {
        let _ = Authorization::parse(&header);
        let given = format!("A Credential={key}/region, SignedHeaders=x, Signature={hex}");
        let is_hex = hex.len() == 40 && !hex.contains('g');
        prop_assert_eq!(Authorization::parse(&given).is_ok_and(|read| read.access_key == key), is_hex);
    }

    #[test]
    fn an_authorization_is_verified_for_its_date_alone(secret in ".{1,80}", date in "[0-9TZ]{1,20}") {
        let signer = Signer::new(&secret);
        let header = signer.authorization("ada", &date);
        let parsed = Authorization::parse(&header).unwrap();
        prop_assert_eq!(parsed.access_key, "ada");
        prop_assert!(signer.verifies_call(&parsed, &date));
        prop_assert!(!signer.verifies_call(&parsed, &format!("{date}0")));
    }
}
