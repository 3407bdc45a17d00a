package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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

	Authority string `placeholder:"HEX" help:"Fingerprint of the only authority whose servers are trusted: that of coordinator serve --listen, as join tokens have it. With it only TLS is used."`
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
	if l.TLS.Authority != "" {
		names = append(names, "--tls-authority")
	}
	return names
}

// Check returns the fault of the flags. What is in the files is looked at when a connection is
// made.
func (l *Login) Check() error {
	if (l.TLS.Cert == "") != (l.TLS.Key == "") {
		return Usagef("--tls-cert and --tls-key: a certificate needs its key; give both or neither")
	}
	if authority, err := hex.DecodeString(l.TLS.Authority); err != nil || len(authority) != 0 && len(authority) != sha256.Size {
		return Usagef("--tls-authority %s: must be 64 hexadecimal digits", l.TLS.Authority)
	}
	if l.TLS.Authority != "" && l.TLS.CA != "" {
		return Usagef("--tls-authority and --tls-ca: each says which servers are trusted; give one of them")
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

// Storage bounds what a fleet stores, as flags. Replicas and what is kept are those of a new fleet.
type Storage struct {
	Replicas   int           `default:"1" enum:"1,3,5" help:"Replicas of new streams: 1, 3 or 5."`
	StreamSize Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of the streams that workers fill, such as 20G, at least 1G, applied only when the fleet is created; 0 means 47G, and no limit for a stream that servers have no room for."`
	KeepAge    time.Duration `default:"0s" help:"Retention of full outputs of shortened results, applied only when the fleet is created; 0 means until their session is removed."`
	KeepSize   Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of full outputs, such as 50G, applied only when the fleet is created; 0 means 8G, or its part of --stream-size. When it is reached, no more outputs are stored."`
	ResultAge  time.Duration `default:"0s" help:"Retention of call results, 10m to 8760h. It also applies to an existing fleet: older results are removed at once. 0 means the fleet's setting, or 168h. A call that is sent again after its result is removed runs again."`
	ResultSize Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of call results, such as 8G, at least 64M; the oldest are removed first. It also applies to an existing fleet. 0 means the fleet's setting, or 16G, or its part of --stream-size."`
}

// Bounds are the flags as [natsio.Topology] takes them.
func (s *Storage) Bounds() natsio.Storage {
	return natsio.Storage{
		Replicas: s.Replicas, StreamBytes: int64(s.StreamSize), KeepAge: s.KeepAge, KeepBytes: int64(s.KeepSize), ResultAge: s.ResultAge, ResultBytes: int64(s.ResultSize),
	}
}

// CheckStorage returns every fault of the flags, as one.
func (s *Storage) CheckStorage() error {
	bounds := s.Bounds()
	err := bounds.Validate()
	if err == nil {
		return nil
	}
	return Usagef("%s", strings.NewReplacer(
		"stream bytes", "--stream-size", "keep age", "--keep-age", "keep bytes", "--keep-size", "result age", "--result-age", "result bytes", "--result-size", "\n", "; ",
	).Replace(err.Error()))
}

// Limits are the limits of a worker's sandboxes, as flags. Calls can only tighten them.
type Limits struct {
	Wall      time.Duration `default:"0s" help:"Maximum run time of a command, whatever its call allows; 0 means no limit by the worker."`
	CPU       time.Duration `name:"cpu" default:"0s" help:"CPU time limit of one process; 0 means unlimited."`
	Memory    Size          `default:"0" placeholder:"SIZE" brief:"Memory limit of a sandbox, such as 2G." help:"Memory limit of a sandbox, such as 512M or 2G; 0 means unlimited."`
	Processes int64         `default:"0" help:"Limit of processes and threads in a sandbox; 0 means 1024."`
	OpenFiles int64         `default:"0" help:"Limit of open files of one process; 0 means 4096."`
	FileSize  Size          `default:"0" placeholder:"SIZE" help:"Size limit of a file that a command writes; 0 means unlimited."`
	Disk      Size          `default:"0" placeholder:"SIZE" help:"Disk space limit of a sandbox; 0 means unlimited."`
	Output    Size          `default:"0" placeholder:"SIZE" help:"Limit of each output stream in a result, 1K to 1M. Longer output is stored separately and ends no command. 0 means 128K."`
}

// Sandbox returns the limits, or every fault of the flags, joined.
func (l *Limits) Sandbox() (sandbox.Limits, error) {
	times := errors.Join(checkTime("--limit-wall", l.Wall), checkTime("--limit-cpu", l.CPU))
	limits := protocol.Limits{
		Memory: int64(l.Memory), Processes: l.Processes,
		OpenFiles: l.OpenFiles, FileSize: int64(l.FileSize), Disk: int64(l.Disk), Output: int64(l.Output),
	}
	if err := errors.Join(times, wire.ValidateLimits(limits)); err != nil {
		return sandbox.Limits{}, limitNames(err)
	}
	return sandbox.Limits{
		Wall: l.Wall, CPU: l.CPU, Memory: limits.Memory, Processes: limits.Processes,
		OpenFiles: limits.OpenFiles, FileSize: limits.FileSize, Disk: limits.Disk, Output: limits.Output,
	}, nil
}

// Warnings returns warnings for an operator about a driver with these capabilities, and the
// requested limits that it does not enforce.
func Warnings(limits sandbox.Limits, caps isolation.Caps) []string {
	warnings := slices.Clone(caps.Warnings)
	var unheld []string
	for _, l := range []struct {
		flag  string
		asked bool
		kind  isolation.LimitKind
	}{
		{"--limit-cpu", limits.CPU > 0, caps.Limits.CPU},
		{"--limit-memory", limits.Memory > 0, caps.Limits.Memory},
		{"--limit-processes", limits.Processes > 0, caps.Limits.Processes},
		{"--limit-open-files", limits.OpenFiles > 0, caps.Limits.OpenFiles},
		{"--limit-file-size", limits.FileSize > 0, caps.Limits.FileSize},
		{"--limit-disk", limits.Disk > 0, caps.Limits.Disk},
	} {
		if l.asked && l.kind == isolation.LimitNone {
			unheld = append(unheld, l.flag)
		}
	}
	if len(unheld) > 0 {
		warnings = append(warnings, fmt.Sprintf("driver %s does not enforce %s", caps.Driver, strings.Join(unheld, ", ")))
	}
	return warnings
}

// checkTime refuses what calls could not ask for either, as the flag gives it.
func checkTime(flag string, value time.Duration) error {
	if value != 0 && (value < time.Millisecond || value > wire.MaxWall) {
		return fmt.Errorf("%s %s: must be 0 or %s to %s", flag, value, time.Millisecond, wire.MaxWall)
	}
	return nil
}

// limitNames turns faults that name fields of the wire into ones that name flags.
func limitNames(err error) error {
	text := strings.NewReplacer(
		"limits.", "--limit-", "_ms", "", "_bytes", "", "open_files", "open-files", "file_size", "file-size", " (the worker's own)", "",
	).Replace(err.Error())
	return Usagef("%s", strings.ReplaceAll(text, "\n", "; "))
}

// Size is a number of bytes, written with or without a unit: 512, 64K, 1.5G, 2GiB. The units
// are powers of 1024.
type Size int64

var errSize = errors.New("want a number of bytes, as in 4096, 64K, 512M or 1.5G")

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	number := strings.TrimSpace(string(text))
	upper := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(number), "B"), "I")
	factor := 1.0
	if at := strings.IndexAny("KMGT", upper[max(0, len(upper)-1):]); upper != "" && at >= 0 {
		factor = math.Pow(1024, float64(at+1))
		upper = upper[:len(upper)-1]
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(upper), 64)
	if err != nil || math.IsNaN(value) || value < 0 || value*factor >= math.MaxInt64 {
		return fmt.Errorf("%q: %w", number, errSize)
	}
	*s = Size(value * factor)
	return nil
}

// String returns the size in the largest unit that gives a whole number.
func (s Size) String() string {
	for i, unit := range []string{"T", "G", "M", "K"} {
		if one := Size(1) << (10 * (4 - i)); s != 0 && s%one == 0 {
			return strconv.FormatInt(int64(s/one), 10) + unit
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Network is what a worker's sandboxes reach of the network, as flags.
type Network struct {
	AllowNet        string `placeholder:"HOST[:PORT],..." brief:"Hosts that commands can reach, or go, npm, pypi." help:"Hosts that sandboxes can reach by TCP: names, *.suffix or addresses, with ports 80 and 443 unless a port is given, HOST:* for every port; or sets of hosts: debian, github, go, npm, pypi; or all, the whole network. Default: none."`
	AllowNetPrivate string `placeholder:"PREFIX,..." help:"Address ranges, such as 10.0.0.0/8, that listed hosts may use although they are not public."`
}

// Reachable returns what the flags say. See [Enforced] for whether it can be had.
func (n *Network) Reachable() (egress.Allow, []netip.Prefix, error) {
	allow, err := egress.ParseAllow(n.AllowNet)
	if err != nil {
		return allow, nil, Usagef("--allow-net: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if strings.TrimSpace(n.AllowNetPrivate) == "" {
		return allow, nil, nil
	}
	var private []netip.Prefix
	for text := range strings.SplitSeq(n.AllowNetPrivate, ",") {
		text = strings.TrimSpace(text)
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return allow, nil, Usagef("--allow-net-private %q: want a range, as in 10.0.0.0/8 or 10.1.2.3/32", text)
		}
		private = append(private, prefix.Masked())
	}
	if allow.Empty() || allow.All() {
		return allow, nil, Usagef("--allow-net-private: needs hosts in --allow-net")
	}
	return allow, private, nil
}

// CheckEnv returns a usage error for a value of --env that no program can get.
func CheckEnv(env map[string]string) error {
	if value, is := env[""]; is {
		return Usagef("--env =%s: the name is empty; want NAME=VALUE", value)
	}
	return nil
}

// Enforced returns a usage error unless a driver with these capabilities enforces allow. A
// driver that isolates nothing gives the whole network whatever is said, and says so itself.
func Enforced(allow egress.Allow, caps isolation.Caps) error {
	switch {
	case allow.Empty():
	case allow.All() && !caps.Enforces(isolation.NetworkAll):
		return Usagef("--allow-net: driver %s cannot give commands the whole network", caps.Driver)
	case !allow.All() && !caps.Enforces(isolation.NetworkProxy):
		return Usagef("--allow-net: driver %s cannot restrict commands to a list of hosts; driver ns can", caps.Driver)
	}
	return nil
}

// protectNone is the value of --protect for no places at all.
const protectNone = "none"

// Protect is which places of workspaces a worker's sandboxes keep from being changed, as a flag.
type Protect struct {
	Protect string `placeholder:"PATH,..." help:"Paths in the workspace that commands and tools cannot create or change; or none. Default: in a directory of yours the files that git and editors execute (.git/hooks, .git/config, .vscode, .idea and more), elsewhere none."`
}

// Places returns what the flag says: nil is the default, and empty none. See [Protects] for
// whether it can be had.
func (p *Protect) Places() ([]string, error) {
	switch strings.TrimSpace(p.Protect) {
	case "":
		return nil, nil
	case protectNone:
		return []string{}, nil
	}
	places := strings.Split(p.Protect, ",")
	for i, text := range places {
		if places[i] = strings.TrimSpace(text); places[i] == "" {
			return nil, Usagef("--protect: %v", errEmptyItem)
		}
	}
	places, err := isolation.CleanProtected(places)
	if err != nil {
		return nil, Usagef("--protect: %v", err)
	}
	return places, nil
}

// Protects returns a usage error unless a driver with these capabilities protects places.
func Protects(places []string, caps isolation.Caps) error {
	if len(places) > 0 && !caps.Protect {
		return Usagef("--protect: driver %s cannot protect paths in the workspace; driver ns can", caps.Driver)
	}
	return nil
}
