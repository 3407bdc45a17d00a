package cli

import (
	"errors"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Connection is how a fleet is reached, and which one, as flags.
type Connection struct {
	Contexts
	Login
	Fleet  string `default:"tf" brief:"Name of the fleet." help:"Name of the fleet: the prefix of its subjects and streams."`
	Bodies string `placeholder:"URL" help:"S3 store of the fleet's workspace contents: s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The first process of a new fleet decides; all others need the same URL, because credentials are sent to no other store. Default: the fleet's NATS servers."`
}

// CheckFleet returns the fault of the name.
func (c *Connection) CheckFleet() error {
	if _, err := protocol.ParseFleet(c.Fleet); err != nil {
		return Usagef("--fleet: %v", err)
	}
	return nil
}

// Login is how a process shows the fleet's NATS servers who it is, and how it checks theirs, as
// flags.
type Login struct {
	Creds string `placeholder:"FILE" brief:"NATS credentials file, or a file with a token." help:"NATS credentials file, or a file with a token. A user and password belong in the URL, best in TOOLFLEET_NATS, which other users cannot see."`
	TLS   TLS    `embed:"" prefix:"tls-"`
}

// Pools says where pools are that have NATS servers or an account of their own, as flags.
type Pools struct {
	PoolNats  map[string]string `placeholder:"POOL=URL" mapsep:";" help:"NATS servers of a pool whose workers use a separate account and reach nothing else of the fleet; separate pools with ;. Default: --nats."`
	PoolCreds map[string]string `placeholder:"POOL=FILE" mapsep:";" help:"Credentials of this process for --pool-nats, as --creds; separate pools with ;."`
}

// CheckPools returns the fault of the flags beside those of nats.
func (p *Pools) CheckPools(nats string) error {
	for pool := range p.PoolNats {
		if _, err := protocol.ParsePool(pool); err != nil {
			return Usagef("--pool-nats: %v", err)
		}
		switch {
		case protocol.Pool(pool) == protocol.SessionPool:
			return Usagef("--pool-nats %s: this pool is that of turns, which is at --nats", pool)
		case nats == "":
			return Usagef("--pool-nats %s: needs --nats, the servers of journals and turns", pool)
		case p.PoolNats[pool] == "":
			return Usagef("--pool-nats %s: the URL of its servers is missing", pool)
		}
		if err := natsio.CheckURLs(p.PoolNats[pool]); err != nil {
			return Usagef("--pool-nats %s: %v", pool, err)
		}
	}
	for pool, file := range p.PoolCreds {
		if p.PoolNats[pool] == "" {
			return Usagef("--pool-creds %s: needs --pool-nats %s=URL", pool, pool)
		}
		if err := checkFile("--pool-creds "+pool+"=", file); err != nil {
			return err
		}
	}
	return nil
}

// Signing is what calls are signed with, as a flag.
type Signing struct {
	SignKey string `placeholder:"FILE" help:"Private key (PEM, Ed25519) that signs calls, for workers that run only signed calls. Default: calls.key next to --creds, if it exists."`
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
	CA   string `name:"ca" placeholder:"FILE" help:"CA certificates (PEM) for NATS servers. With it only TLS is used. Default: the system's."`
	Cert string `placeholder:"FILE" help:"Client certificate (PEM) for NATS servers; with --tls-key."`
	Key  string `placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
}

// files are the flags that name a file, and those files.
func (l *Login) files() []struct{ flag, file string } {
	return []struct{ flag, file string }{
		{"--creds", l.Creds}, {"--tls-ca", l.TLS.CA}, {"--tls-cert", l.TLS.Cert}, {"--tls-key", l.TLS.Key},
	}
}

// Given are the names of the flags that are set.
func (l *Login) Given() []string {
	var names []string
	for _, f := range l.files() {
		if f.file != "" {
			names = append(names, f.flag)
		}
	}
	return names
}

// Check returns the fault of the flags. What is in the files is looked at when a connection is
// made.
func (l *Login) Check() error {
	if (l.TLS.Cert == "") != (l.TLS.Key == "") {
		return Usagef("--tls-cert and --tls-key: a certificate needs its key; give both or neither")
	}
	for _, f := range l.files() {
		if f.file == "" {
			continue
		}
		if err := checkFile(f.flag+" ", f.file); err != nil {
			return err
		}
	}
	return nil
}

func checkFile(flag, file string) error {
	if info, err := os.Stat(file); err != nil {
		hint := ""
		if strings.HasPrefix(flag, "--creds") && errors.Is(err, os.ErrNotExist) {
			hint = "; coordinator serve prints the path of its token at its start"
		}
		return Usagef("%s%s: %v%s", flag, file, errors.Unwrap(err), hint)
	} else if info.IsDir() {
		return Usagef("%s%s: is a directory, not a file", flag, file)
	} else if !info.Mode().IsRegular() { // reading a FIFO would wait
		return Usagef("%s%s: %v", flag, file, regular.ErrNot)
	}
	return nil
}

// Server is a URL with the flags.
func (l *Login) Server(url string) natsio.Server {
	return natsio.Server{URL: url, Creds: l.Creds, TLS: natsio.TLS(l.TLS)}
}
