package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// joinExpires is how long a join token is good if nothing else is asked for.
const joinExpires = 90 * 24 * time.Hour

// roleCaller is the role of those who make calls and sessions of their tenant. No token of NATS has
// it: their interface is HTTP, which judges each act by its tenant.
const roleCaller = "caller"

// joinTokenCommand makes the tokens with which other machines join the fleet of a coordinator whose
// server is inside it. It changes a list in the data directory, so it runs on that machine.
type joinTokenCommand struct {
	Data string `placeholder:"DIR" help:"Data directory of the coordinator serve (--data). Default: that of coordinator serve without --data."`
	JSON bool   `name:"json" help:"Print JSON."`

	Add struct {
		Role    string        `default:"worker" enum:"worker,caller,coordinator" help:"What the token allows: worker (take the calls of one pool) or coordinator (everything, as this coordinator; it has the key that signs calls). A caller gets its token from coordinator token add."`
		Pool    string        `default:"default" help:"Pool of the worker."`
		Fleet   string        `default:"tf" help:"Name of the fleet."`
		Expires time.Duration `default:"2160h" help:"Time for which the token is good; then its connections are closed. 0 means that it never expires."`
		Note    string        `placeholder:"TEXT" help:"Text that the list shows, such as the machine."`
		Address []string      `placeholder:"HOST:PORT" help:"Where the other machine reaches this one, separated by commas. Default: the addresses where the server listens."`
	} `cmd:"" help:"Make a token for one process of another machine, and print it. It is stored nowhere: what is listed has no secret."`
	Ls struct{} `cmd:"" help:"List tokens, without their secrets."`
	Rm struct {
		ID []string `arg:"" help:"Ids of the tokens, as in the list."`
	} `cmd:"" help:"Remove tokens: their connections are closed within a second, and cannot come back."`
}

// verbs implements [group].
func (c *joinTokenCommand) verbs() map[string]command {
	return map[string]command{"add": joinVerb(c.add), "ls": joinVerb(c.list), "rm": joinVerb(c.remove)}
}

// joinVerb is a subcommand that needs no connection.
type joinVerb func(ctx context.Context, p program) error

func (v joinVerb) run(ctx context.Context, p program) error { return v(ctx, p) }

// store is the list of tokens.
func (c *joinTokenCommand) store() (join.Store, error) {
	data := c.Data
	if data == "" {
		var err error
		if data, err = cli.StateDir("serve"); err != nil {
			return join.Store{}, cli.Usagef("--data: %v", err)
		}
	}
	store := join.Store{Dir: filepath.Join(data, fleet.ServerDir)}
	if _, err := os.Stat(store.Dir); err != nil {
		return store, fmt.Errorf("%w (%s): start coordinator serve first, or name its --data", join.ErrNoServer, data)
	}
	return store, nil
}

// entry is what the flags of add ask for.
func (c *joinTokenCommand) entry() (e join.Entry, err error) {
	if c.Add.Role == roleCaller {
		return e, cli.Usagef("--role caller: rights of NATS know no tenant, so a caller has none: coordinator token add NAME --role run --tenant TENANT makes a token for coordinator serve --http, with which a client makes calls and sessions of its tenant, follows them, and does nothing else")
	}
	e = join.Entry{Role: join.Role(c.Add.Role), Note: c.Add.Note}
	if e.Fleet, err = protocol.ParseFleet(c.Add.Fleet); err != nil {
		return e, cli.Usagef("--fleet: %v", err)
	}
	if e.Role == join.RoleWorker {
		if e.Pool, err = protocol.ParsePool(c.Add.Pool); err == nil && e.Pool == protocol.SessionPool {
			err = errors.New("is the pool of turns, which coordinators take")
		}
		if err != nil {
			return e, cli.Usagef("--pool %s: %v", c.Add.Pool, err)
		}
	}
	if c.Add.Expires < 0 {
		return e, cli.Usagef("--expires %s: must not be negative; 0 means never", c.Add.Expires)
	}
	if c.Add.Expires > 0 {
		e.Expires = time.Now().Add(c.Add.Expires).UTC().Truncate(time.Second)
	}
	for _, address := range c.Add.Address {
		host, port, err := net.SplitHostPort(address)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			return e, cli.Usagef("--address %s: want host:port, as in 192.0.2.7:4222", address)
		}
	}
	return e, nil
}

func (c *joinTokenCommand) add(ctx context.Context, p program) error {
	entry, err := c.entry()
	if err != nil {
		return err
	}
	store, err := c.store()
	if err != nil {
		return err
	}
	known, err := embedded.OwnPools(store.Dir, entry.Fleet)
	if err != nil {
		return err
	}
	token, entry, err := newJoinToken(ctx, store, entry, c.Add.Address)
	if err != nil {
		return err
	}
	if entry.Role == join.RoleWorker {
		isNew := entry.Pool != protocol.DefaultPool && !slices.Contains(known, entry.Pool)
		if err := makeJoinedPool(ctx, store, token); err == nil && isNew {
			p.warn(fmt.Sprintf("the pool %s is new, and has an account of its own: coordinator serve reaches it from its next start on", entry.Pool))
		} else if err != nil {
			p.warn(fmt.Sprintf("the pool %s is made when coordinator serve starts: it cannot be reached now: %v", entry.Pool, err))
		}
	}
	if c.JSON {
		return printJSON(p, struct {
			join.Entry

			Token string `json:"token"`
		}{entry, token.String()})
	}
	_, err = fmt.Fprintln(p.Stdout, token)
	return err
}

// newJoinToken stores a new token, and returns it.
func newJoinToken(ctx context.Context, store join.Store, entry join.Entry, addresses []string) (token join.Token, added join.Entry, err error) {
	server, err := store.ReadServer()
	if err != nil {
		return token, added, err
	}
	token = join.Token{Addresses: server.Addresses, Role: entry.Role, Fleet: entry.Fleet, Pool: entry.Pool, Expires: entry.Expires}
	if len(addresses) > 0 {
		token.Addresses = addresses
	}
	if !server.Plain {
		if token.Authority, err = join.FingerprintIn(store.Dir); err != nil {
			return token, added, err
		}
	}
	switch {
	case entry.Role == join.RoleCoordinator:
		token.Pools, err = embedded.OwnPools(store.Dir, entry.Fleet)
	case entry.Pool != protocol.DefaultPool: // before the first worker may come
		_, err = embedded.LoadToken(embedded.PoolTokenFile(store.Dir, entry.Fleet, entry.Pool))
	}
	if err != nil {
		return token, added, err
	}
	const maxKey = 64 << 10
	for name, into := range map[string]*string{signing.PublicFile: &token.Keys, signing.PrivateFile: &token.Key} {
		if name == signing.PrivateFile && entry.Role != join.RoleCoordinator {
			continue
		}
		key, err := regular.Read(filepath.Join(store.Dir, name), maxKey)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a coordinator with --sign-key has none
			return token, added, err
		}
		*into = string(key)
	}
	added, token.Secret, err = store.Add(ctx, entry)
	return token, added, err
}

// joinPatience bounds the wait for the server of this machine.
const joinPatience = 10 * time.Second

// makeJoinedPool makes the pool of a worker, which may not.
func makeJoinedPool(ctx context.Context, store join.Store, token join.Token) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	server, err := store.ReadServer()
	if err != nil {
		return err
	}
	token.Addresses, token.Secret = server.Addresses, "" // those of this machine
	file := filepath.Join(store.Dir, embedded.TokenFile)
	if token.Pool != protocol.DefaultPool {
		file = embedded.PoolTokenFile(store.Dir, token.Fleet, token.Pool)
	}
	own, err := embedded.LoadToken(file)
	if err != nil {
		return err
	}
	token.Secret, token.Role = own, join.RoleCoordinator
	nc, err := natsio.Connect(ctx, token.URL(), natsio.ConnectOptions{Name: "coordinator join-token", TLS: natsio.TLS{Authority: token.Authority}})
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := natsio.Ensure(ctx, js, natsio.Topology{Fleet: token.Fleet}); err != nil {
		return err
	}
	return natsio.MakePool(ctx, js, token.Fleet, token.Pool)
}

func (c *joinTokenCommand) list(_ context.Context, p program) error {
	store, err := c.store()
	if err != nil {
		return err
	}
	list, err := store.List()
	if err != nil {
		return err
	}
	seen, err := store.Seen()
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Digest, list[i].Seen = "", seen[list[i].ID]
	}
	return printList(p, c.JSON, list, "", "ID\tROLE\tPOOL\tCREATED\tEXPIRES\tLAST SEEN\tNOTE", func(e *join.Entry) []any {
		at := func(t time.Time) string {
			if t.IsZero() {
				return "never"
			}
			return t.Local().Format(time.DateTime)
		}
		expires := at(e.Expires)
		if e.Expired(time.Now()) {
			expires += " (expired)"
		}
		return []any{e.ID, e.Role, cmp.Or(string(e.Pool), "-"), e.Created.Local().Format(time.DateTime), expires, at(e.Seen), e.Note}
	})
}

func (c *joinTokenCommand) remove(ctx context.Context, _ program) error {
	store, err := c.store()
	if err != nil {
		return err
	}
	return store.Remove(ctx, c.Rm.ID...)
}

// firstJoin returns the command line of a worker on another machine, with a new token if no worker
// has one yet; else that which makes one.
func firstJoin(ctx context.Context, data string, of protocol.Fleet) (line string, err error) {
	store := join.Store{Dir: filepath.Join(data, fleet.ServerDir)}
	list, err := store.List()
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if e.Role == join.RoleWorker && e.Fleet == of && !e.Expired(time.Now()) {
			return "worker --join TOKEN (coordinator join-token add --data " + cli.ShellWord(data) + " makes a token)", nil
		}
	}
	entry := join.Entry{Role: join.RoleWorker, Fleet: of, Pool: protocol.DefaultPool, Note: "first", Expires: time.Now().Add(joinExpires).UTC().Truncate(time.Second)}
	token, _, err := newJoinToken(ctx, store, entry, nil)
	return "worker --join " + token.String(), err
}

// joinedPools are the pools of the workers that may join, and the default one.
func joinedPools(data string, of protocol.Fleet) ([]protocol.Pool, error) {
	pools := []protocol.Pool{protocol.DefaultPool}
	list, err := join.Store{Dir: filepath.Join(data, fleet.ServerDir)}.List()
	for _, e := range list {
		if e.Role == join.RoleWorker && e.Fleet == of {
			pools = append(pools, e.Pool)
		}
	}
	return pools, err
}
