use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use camino::Utf8Path;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use utils::id::TenantId;

use super::keys::PublicKey;
use super::*;

const TENANT: &str = "11223344556677881122334455667788";

/// Creates keys and tokens.
pub(crate) struct Signer(Ed25519KeyPair);

impl Signer {
    pub(crate) fn new() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn public(&self) -> [u8; 32] {
        self.0.public_key().as_ref().try_into().unwrap()
    }

    pub(crate) fn pem(&self) -> String {
        let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        der.extend(self.public());
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    pub(crate) fn claims(&self, claims: &Value) -> String {
        self.token(&json!({"alg": "EdDSA", "typ": "JWT"}), claims)
    }
}

fn permission(signer: &Signer, token: &str) -> Result<Permission, &'static str> {
    jwt::verify(token, &[PublicKey::new(signer.public())], at(1_000_000)).map(|verified| verified.permission)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn the_example_of_rfc_8037_verifies() {
    let key = URL_SAFE_NO_PAD.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
    let key = PublicKey::new(key.try_into().unwrap());
    let signed = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    assert!(key.has_signed(signed.as_bytes(), &signature));
    signature[10] ^= 1;
    assert!(!key.has_signed(signed.as_bytes(), &signature));
}

#[test]
fn scopes_say_what_is_allowed() {
    let signer = Signer::new();
    let tenant: TenantId = TENANT.parse().unwrap();
    let all = permission(&signer, &signer.claims(&json!({"scope": "pageserverapi"}))).unwrap();
    assert_eq!((all.check_all(), all.check_tenant(tenant)), (Ok(()), Ok(())));
    assert_eq!(all.check_tenant_admin(tenant), Ok(()));
    for (scope, admin) in [("tenant", Err(AuthError::Forbidden)), ("tenant_admin", Ok(()))] {
        let one = permission(&signer, &signer.claims(&json!({"scope": scope, "tenant_id": TENANT}))).unwrap();
        assert_eq!((one.check_all(), one.check_tenant(tenant)), (Err(AuthError::Forbidden), Ok(())));
        assert_eq!((one.check_tenant_admin(tenant), scope), (admin, scope));
        let other = TenantId::generate();
        assert_eq!(one.check_tenant(other), Err(AuthError::Forbidden));
        assert_eq!(one.check_tenant_admin(other), Err(AuthError::Forbidden));
        let nameless = signer.claims(&json!({"scope": scope, "tenant_id": null}));
        assert_eq!(permission(&signer, &nameless), Err("its scope is a tenant, and it names none"));
    }
    for scope in ["tenantendpoint", "safekeeperdata", "generations_api", "admin", "infra", "scrubber", "Tenant", ""] {
        let token = signer.claims(&json!({"scope": scope, "tenant_id": TENANT}));
        assert_eq!(permission(&signer, &token), Err("its scope is not one of this service"), "{scope}");
    }
}

#[test]
fn expiry_is_checked_if_given() {
    let signer = Signer::new();
    let with = |name: &str, value: Value| signer.claims(&json!({"scope": "pageserverapi", name: value}));
    assert!(permission(&signer, &with("exp", json!(1_000_001))).is_ok());
    assert!(permission(&signer, &with("exp", json!(999_941.5))).is_ok());
    assert_eq!(permission(&signer, &with("exp", json!(999_940))), Err("it has expired"));
    assert!(permission(&signer, &with("nbf", json!(1_000_060))).is_ok());
    assert_eq!(permission(&signer, &with("nbf", json!(1_000_061))), Err("it is not valid yet"));
    assert_eq!(permission(&signer, &with("exp", json!("soon"))), Err("its claims are not understood"));
}

#[test]
fn forged_and_malformed_tokens_are_refused() {
    let (signer, other) = (Signer::new(), Signer::new());
    let claims = json!({"scope": "pageserverapi"});
    let good = signer.claims(&claims);
    assert_eq!(permission(&signer, &good), Ok(Permission::All));
    assert_eq!(permission(&signer, &other.claims(&claims)), Err("no known key has signed it"));
    for alg in ["none", "HS256", "RS256", "eddsa", ""] {
        assert!(permission(&signer, &signer.token(&json!({"alg": alg}), &claims)).is_err(), "{alg}");
    }
    assert!(permission(&signer, &signer.token(&json!({"alg": "EdDSA", "crit": ["x"]}), &claims)).is_err());
    for end in 0..good.len() {
        assert!(permission(&signer, &good[..end]).is_err(), "cut at {end}");
    }
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(permission(&signer, &String::from_utf8(bytes).unwrap()).is_err(), "changed at {at}");
    }
    for text in ["", ".", "..", "...", "a.b.c", &"x".repeat(10_000), &format!("{good}="), &format!(" {good}")] {
        assert!(permission(&signer, text).is_err(), "{text}");
    }
}

fn write(dir: &Utf8Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

#[test]
fn keys_come_from_a_file_or_a_directory_and_can_be_replaced() {
    let dir = camino_tempfile::tempdir().unwrap();
    let (first, second) = (Signer::new(), Signer::new());
    let token = |signer: &Signer| signer.claims(&json!({"scope": "pageserverapi"}));
    write(dir.path(), "a.pem", &first.pem());
    write(dir.path(), "notes.txt", "not a key");
    let keys = Arc::new(KeyRing::load(dir.path().to_owned()).unwrap());
    let auth = Auth::jwt(Arc::clone(&keys));
    assert_eq!(auth.check(Some(&token(&first))).unwrap().permission(), Permission::All);
    assert_eq!(auth.check(Some(&token(&second))).err(), Some(AuthError::Invalid));
    assert_eq!(auth.check(None).err(), Some(AuthError::Missing));
    assert_eq!(Auth::trust().check(None).unwrap().permission(), Permission::All);

    write(dir.path(), "b.pem", &second.pem());
    assert_eq!(keys.reload().unwrap(), 2);
    assert!(auth.check(Some(&token(&first))).is_ok() && auth.check(Some(&token(&second))).is_ok());

    write(dir.path(), "c.pem", "no key");
    assert!(matches!(keys.reload(), Err(KeyError::NotAKey { .. })));
    assert!(auth.check(Some(&token(&second))).is_ok(), "a failed reload keeps the keys");

    let both = dir.path().join("both.pem");
    std::fs::write(&both, format!("{}{}", first.pem(), second.pem())).unwrap();
    assert_eq!(KeyRing::load(both).unwrap().reload().unwrap(), 2);
}

/// Whether a grant ends within a short time.
async fn ends(grant: &Grant) -> bool {
    tokio::time::timeout(Duration::from_millis(50), grant.ended()).await.is_ok()
}

#[tokio::test]
async fn what_was_allowed_ends_with_the_token_and_with_its_key() {
    let dir = camino_tempfile::tempdir().unwrap();
    let (first, second) = (Signer::new(), Signer::new());
    write(dir.path(), "a.pem", &first.pem());
    write(dir.path(), "b.pem", &second.pem());
    let keys = Arc::new(KeyRing::load(dir.path().to_owned()).unwrap());
    let auth = Auth::jwt(Arc::clone(&keys));
    let granted = |signer: &Signer, exp: Value| {
        auth.check(Some(&signer.claims(&json!({"scope": "pageserverapi", "exp": exp})))).unwrap()
    };
    assert!(!ends(&Auth::trust().check(None).unwrap()).await);
    // Clocks may differ by a minute: the token is valid for one more second.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let short = granted(&first, json!(now - 59.0));
    assert!(!ends(&short).await);
    tokio::time::timeout(Duration::from_secs(20), short.ended()).await.expect("it ends by itself");
    for never in [json!(null), json!(now + 3600.0), json!(1e300)] {
        assert!(!ends(&granted(&first, never)).await);
    }

    let (by_first, by_second) = (granted(&first, json!(null)), granted(&second, json!(now + 3600.0)));
    keys.reload().unwrap();
    assert!(!ends(&by_first).await && !ends(&by_second).await, "the same keys");
    let waiting = tokio::spawn({
        let by_second = by_second.clone();
        async move { by_second.ended().await }
    });
    std::fs::remove_file(dir.path().join("b.pem")).unwrap();
    assert_eq!(keys.reload().unwrap(), 1);
    tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("at once").unwrap();
    assert!(ends(&by_second).await && !ends(&by_first).await);
}

#[test]
fn what_is_no_key_is_refused_by_name() {
    let dir = camino_tempfile::tempdir().unwrap();
    assert!(matches!(KeyRing::load(dir.path().to_owned()), Err(KeyError::NoKeys { .. })));
    assert!(matches!(KeyRing::load(dir.path().join("absent.pem")), Err(KeyError::Read { .. })));
    let other = STANDARD.encode([0x30; 44]);
    write(dir.path(), "k.pem", &format!("-----BEGIN PUBLIC KEY-----\n{other}\n-----END PUBLIC KEY-----\n"));
    let error = KeyRing::load(dir.path().join("k.pem")).unwrap_err().to_string();
    assert!(error.contains("k.pem") && error.contains("another algorithm"), "{error}");
}
