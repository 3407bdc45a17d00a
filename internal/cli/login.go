package cli

import (
	"errors"
	"os"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/signing"
)

// Login is how a process shows the fleet's NATS servers who it is, and how it checks theirs, as
// flags.
type Login struct {
	Creds string `placeholder:"FILE" help:"NATS credentials file, or a file with a token. A user and password go into the URL, best in TOOLFLEET_NATS, which others do not see."`
	TLS   TLS    `embed:"" prefix:"tls-"`
}

// Signing is what calls are signed with, as a flag.
type Signing struct {
	SignKey string `placeholder:"FILE" help:"Private key (PEM, Ed25519) that calls are signed with, for workers that run signed ones only. Default: calls.key beside --creds, if it is there."`
}

// CheckKey returns the fault of the flag or its file.
func (s *Signing) CheckKey() error {
	if s.SignKey == "" {
		return nil
	}
	if _, err := signing.Load(s.SignKey); err != nil {
		return Usagef("--sign-key: %v", err)
	}
	return nil
}

// TLS is the part of [Login] for servers with certificates of an own authority.
type TLS struct {
	CA   string `name:"ca" placeholder:"FILE" help:"Certificates (PEM) of the authorities that NATS servers are checked against. Default: the system's. With it nothing but TLS is spoken."`
	Cert string `placeholder:"FILE" help:"Certificate (PEM) that this process shows to NATS servers; with --tls-key."`
	Key  string `placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
}

// Check returns the fault of the flags. What is in the files is looked at when a connection is
// made.
func (l *Login) Check() error {
	if (l.TLS.Cert == "") != (l.TLS.Key == "") {
		return Usagef("--tls-cert and --tls-key: a certificate needs its key; give both or neither")
	}
	for _, f := range []struct{ flag, file string }{
		{"--creds", l.Creds}, {"--tls-ca", l.TLS.CA}, {"--tls-cert", l.TLS.Cert}, {"--tls-key", l.TLS.Key},
	} {
		if f.file == "" {
			continue
		}
		if info, err := os.Stat(f.file); err != nil {
			return Usagef("%s %s: %v", f.flag, f.file, errors.Unwrap(err))
		} else if info.IsDir() {
			return Usagef("%s %s: is a directory, not a file", f.flag, f.file)
		}
	}
	return nil
}

// Files are the flags as [natsio.Connect] takes them.
func (l *Login) Files() natsio.TLS { return natsio.TLS(l.TLS) }
