//! The key pair of a job, with which only pods of the job can log in to each other.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use p521::SecretKey;
use p521::elliptic_curve::Generate as _;
use p521::pkcs8::LineEnding;
use ssh_key::PublicKey;
use ssh_key::public::{EcdsaPublicKey, KeyData};
use zeroize::Zeroizing;

/// A private key and its public half, in OpenSSH's formats.
#[derive(Clone)]
pub struct KeyPair {
    /// SEC1 in PEM: `-----BEGIN EC PRIVATE KEY-----`.
    pub private: Zeroizing<String>,
    /// One line of an `authorized_keys` file, without a comment.
    pub public: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Generates a P-521 pair from the system's randomness. This takes milliseconds, so don't block an async thread with it.
    ///
    /// # Errors
    /// If the system's random source fails.
    pub fn generate() -> Result<Self, KeyError> {
        let odd = |error: &dyn fmt::Display| KeyError(error.to_string());
        let secret = SecretKey::try_generate().map_err(|e| odd(&e))?;
        let private = secret.to_sec1_pem(LineEnding::LF).map_err(|e| odd(&e))?;
        let public = authorized(&secret).map_err(|e| odd(&e))?;
        Ok(Self { private, public })
    }

    /// Returns the data of the job's Secret.
    pub fn secret_data(&self) -> BTreeMap<String, ByteString> {
        let entry =
            |key: &str, value: &str| (key.to_owned(), ByteString(value.as_bytes().to_vec()));
        [
            entry("ssh-privatekey", &self.private),
            entry("ssh-publickey", &self.public),
        ]
        .into()
    }
}

/// A key pair could not be generated.
#[derive(Debug, thiserror::Error)]
#[error("no SSH key could be made: {0}")]
pub struct KeyError(String);

/// Returns the line of an `authorized_keys` file for a key.
fn authorized(secret: &SecretKey) -> Result<String, ssh_key::Error> {
    let point = secret.public_key().to_sec1_bytes();
    let data = KeyData::from(EcdsaPublicKey::from_sec1_bytes(&point)?);
    let line = PublicKey::from(data).to_openssh()?;
    Ok(format!("{}\n", line.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_the_published_form_and_its_halves_belong_together() {
        let pair = KeyPair::generate().unwrap();
        assert!(pair.private.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        assert!(pair.private.ends_with("-----END EC PRIVATE KEY-----\n"));
        let line = pair.public.strip_suffix('\n').unwrap();
        assert_eq!(line.split(' ').count(), 2, "no comment: {line}");
        assert!(line.starts_with("ecdsa-sha2-nistp521 AAAA"), "{line}");
        let secret = SecretKey::from_sec1_pem(&pair.private).unwrap();
        assert_eq!(authorized(&secret).unwrap(), pair.public);
        assert!(PublicKey::from_openssh(line).is_ok());
    }

    #[test]
    fn mt_19_i_51_every_job_has_a_key_of_its_own_that_no_log_shows() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        assert_ne!(one.public, other.public);
        assert!(!format!("{one:?}").contains("PRIVATE"));
    }
}
