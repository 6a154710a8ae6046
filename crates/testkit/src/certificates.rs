//! Certificates of an authority that nobody else knows, for servers that speak TLS.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::{process, user};

/// An authority's certificate, and one each that it gave to a server and a client, in a folder that vanishes.
///
/// | file | content |
/// | --- | --- |
/// | `ca.pem` | the authority's certificate |
/// | `server.pem`, `server.key` | that of the host `localhost`, which `127.0.0.1` is not, and its key |
/// | `client.pem`, `client.key` | that of one who is called `client`, and its key |
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    ///
    /// If there is no place for them.
    pub fn make() -> Self {
        let certificates = Self { folder: process::folder("tenure-certificates-") };
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, new_key()).expect("it can sign itself");
        certificates.write("ca.pem", &authority.pem());
        for (who, name) in [("server", "localhost"), ("client", "client")] {
            let key = new_key();
            let mut params = CertificateParams::new([name.to_owned()]).expect("it is the name of a host");
            // One with the name of its authority would be taken for that.
            params.distinguished_name.push(DnType::CommonName, who);
            let certificate = params.signed_by(&key, &authority).expect("an authority can sign");
            certificates.write(&format!("{who}.pem"), &certificate.pem());
            certificates.write(&format!("{who}.key"), &key.serialize_pem());
        }
        certificates
    }

    /// Where one of them is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a server is given: the authority's certificate, its own, and its key.
    pub(crate) fn of_server(&self) -> OfServer {
        OfServer(["ca.pem", "server.pem", "server.key"].map(|name| self.file(name)))
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

/// The files of a server: the authority's certificate, its own, and its key.
#[derive(Clone, Debug)]
pub(crate) struct OfServer([PathBuf; 3]);

impl OfServer {
    /// Copies of them in a server's folder, for its own user alone: keys that others may read are refused.
    pub(crate) fn copied_for(&self, user: &str, folder: &Path) -> [String; 3] {
        let folder = user::folder_of(user, folder, "tls");
        self.0.each_ref().map(|file| user::copy_of(user, &folder, file).display().to_string())
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key needs nothing but chance")
}
