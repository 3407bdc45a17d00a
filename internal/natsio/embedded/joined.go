package embedded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// joins decides who may connect to a server that listens: who has the token of its data directory,
// which allows all, or a join token that is listed.
//
// A worker gets an account of its own pool, which has no stream and imports each subject that a
// worker needs, one by one: so the server answers it in that account alone. Whatever reply subject
// it chooses, nothing is published elsewhere but on the subjects of its permissions. It is what
// deploy/nats has for the servers of others.
//
// The default pool has its streams in the account of the fleet. Every other pool for which a token
// was made has an account of its own for them, and coordinators a token of their own there: its
// workers reach nothing of another pool.
type joins struct {
	store  join.Store
	own    string // the token of the data directory
	logger *slog.Logger
	server *server.Server

	mu       sync.Mutex
	list     []join.Entry
	removed  []join.Entry // whose connections are still to be closed
	seen     fs.FileInfo  // of the list; nil without one
	accounts map[at]*server.Account
	streams  map[at]*server.Account // of pools with accounts of their own
	pools    map[string]at          // such pools, by the tokens of coordinators
	warned   time.Time              // that the list cannot be read

	present map[string]time.Time // when the processes of tokens were connected last; of watch alone
	looked  time.Time            // when that was found out
}

// at is where the workers of an account take calls.
type at struct {
	fleet protocol.Fleet
	pool  protocol.Pool
}

// joinsPoll is how often the list is read again, so also how long a removed token may still be
// good.
const joinsPoll = 500 * time.Millisecond

// Check implements [server.Authentication].
func (j *joins) Check(c server.ClientAuthentication) bool {
	sent := c.GetOpts()
	secret := cmp.Or(sent.Token, sent.Password)
	if secret == "" || sent.Nkey != "" || sent.JWT != "" { // their users would be listed under other names
		return false
	}
	if subtle.ConstantTimeCompare([]byte(secret), []byte(j.own)) == 1 {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock() // until the user is registered: what is removed later is seen by sweep
	if of, is := j.poolOf(secret); is {
		account, err := j.streamsOf(of)
		if err != nil {
			j.warn("a pool cannot be reached", err)
			return false
		}
		c.RegisterUser(&server.User{Username: join.PoolUser(of.pool), Account: account})
		return true
	}
	entry, known := join.Find(j.list, secret)
	if !known {
		j.read() // it may have been added a moment ago
		entry, known = join.Find(j.list, secret)
	}
	if !known {
		return false
	}
	user := &server.User{Username: entry.ID, ConnectionDeadline: entry.Expires}
	switch entry.Role {
	case join.RoleCoordinator:
		pool, is := join.PoolOfUser(sent.Username)
		if !is {
			break
		}
		var err error
		if user.Account, err = j.streamsOf(at{entry.Fleet, pool}); err != nil {
			j.warn("a coordinator cannot reach a pool", err)
			return false
		}
	case join.RoleWorker:
		account, err := j.account(at{entry.Fleet, entry.Pool})
		if err != nil {
			j.warn("a worker cannot join", err)
			return false
		}
		user.Account, user.Permissions = account, workerPermissions(entry.Fleet, entry.Pool)
	default: // of a later version
		return false
	}
	c.RegisterUser(user)
	return true
}

func (j *joins) warn(what string, err error) {
	if j.logger != nil {
		j.logger.Warn("join tokens", slog.String("problem", what), slog.Any("error", err))
	}
}

// read reads the list if it has changed, and notes which tokens were removed. A list that cannot be
// read changes nothing. The lock is held.
func (j *joins) read() {
	info, err := os.Stat(j.store.File())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil:
		j.unread(err)
		return
	}
	if same(info, j.seen) {
		return
	}
	list, err := j.store.List()
	if err != nil {
		j.unread(err)
		return
	}
	for _, e := range j.list {
		if !slices.ContainsFunc(list, func(other join.Entry) bool { return other.ID == e.ID && other.Digest == e.Digest }) {
			j.removed = append(j.removed, e)
		}
	}
	j.list, j.seen = list, info
}

// unread warns that the list cannot be read, which is tried again and again.
func (j *joins) unread(err error) {
	if time.Since(j.warned) < time.Minute {
		return
	}
	j.warned = time.Now()
	j.warn("the list of join tokens cannot be read: the last one stays", err)
}

func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// watch closes connections whose tokens have been removed, until ctx ends. The server itself closes
// those whose tokens expire.
func (j *joins) watch(ctx context.Context) {
	for pause.For(ctx, joinsPoll) {
		j.sweep()
		j.note()
	}
}

// seenEvery is how often it is noted which tokens are in use.
const seenEvery = 5 * time.Second

// note stores which tokens are in use, if it is time. It is for people: if it fails, it is tried
// again.
func (j *joins) note() {
	if time.Since(j.looked) < seenEvery {
		return
	}
	j.looked = time.Now()
	listed := map[string]bool{}
	j.mu.Lock()
	for _, e := range j.list {
		listed[e.ID] = true
	}
	j.mu.Unlock()
	clients, err := j.server.Connz(&server.ConnzOptions{Username: true, Limit: server.DEFAULT_MAX_CONNECTIONS})
	if err != nil || len(listed) == 0 {
		return
	}
	if j.present == nil {
		if j.present, err = j.store.Seen(); err != nil {
			j.present = map[string]time.Time{}
		}
	}
	maps.DeleteFunc(j.present, func(id string, _ time.Time) bool { return !listed[id] })
	changed := false
	for _, client := range clients.Conns {
		if listed[client.AuthorizedUser] {
			j.present[client.AuthorizedUser], changed = j.looked.UTC().Truncate(time.Second), true
		}
	}
	if changed {
		_ = j.store.WriteSeen(j.present)
	}
}

func (j *joins) sweep() {
	j.mu.Lock()
	j.read()
	removed := j.removed
	j.removed = nil
	j.mu.Unlock()
	for _, e := range removed {
		clients, err := j.server.Connz(&server.ConnzOptions{Username: true, User: e.ID, Limit: server.DEFAULT_MAX_CONNECTIONS})
		if err != nil {
			j.warn("the connections of a removed join token stay for now", err)
			j.mu.Lock()
			j.removed = append(j.removed, e)
			j.mu.Unlock()
			continue
		}
		for _, client := range clients.Conns {
			_ = j.server.DisconnectClientByID(client.Cid) // it may be gone
		}
	}
}

// poolOf returns the pool whose token of coordinators a secret is. The lock is held.
func (j *joins) poolOf(secret string) (of at, is bool) {
	if of, is = j.pools[digest(secret)]; is || strings.Contains(secret, ".") { // a join token
		return of, is
	}
	j.readPools()
	of, is = j.pools[digest(secret)]
	return of, is
}

// readPools reads the tokens of pools again. The lock is held.
func (j *joins) readPools() {
	all, err := ownPools(j.store.Dir)
	if err != nil {
		j.unread(err)
		return
	}
	for _, of := range all {
		if token, err := LoadToken(PoolTokenFile(j.store.Dir, of.fleet, of.pool)); err == nil {
			j.pools[digest(token)] = of
		}
	}
}

// digest is by what tokens are found, so that the time that it takes says nothing about them.
func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return string(sum[:])
}

// streamsOf returns the account that has the streams of a pool. The lock is held.
func (j *joins) streamsOf(of at) (*server.Account, error) {
	if of.pool == protocol.DefaultPool {
		return j.server.GlobalAccount(), nil
	}
	if account := j.streams[of]; account != nil {
		return account, nil
	}
	if _, err := protocol.ParsePool(string(of.pool)); err != nil { // a client may have named it
		return nil, err
	}
	if _, err := os.Stat(PoolTokenFile(j.store.Dir, of.fleet, of.pool)); err != nil {
		return nil, err
	}
	account, _ := j.server.LookupOrRegisterAccount("POOL." + string(of.fleet) + "." + string(of.pool))
	if err := account.EnableJetStream(nil, nil); err != nil {
		return nil, err
	}
	j.streams[of] = account
	return account, nil
}

// PoolTokenFile is the file with the token of coordinators in the account of a pool. A pool has an
// account of its own if, and only if, the file exists.
func PoolTokenFile(data string, fleet protocol.Fleet, pool protocol.Pool) string {
	return filepath.Join(data, "pool."+string(fleet)+"."+string(pool)+".token")
}

// ownPools are the pools with accounts of their own.
func ownPools(data string) (all []at, err error) {
	files, err := os.ReadDir(data)
	for _, file := range files {
		parts := strings.Split(file.Name(), ".")
		if len(parts) != 4 || parts[0] != "pool" || parts[3] != "token" {
			continue
		}
		fleet, badFleet := protocol.ParseFleet(parts[1])
		pool, badPool := protocol.ParsePool(parts[2])
		if badFleet == nil && badPool == nil && pool != protocol.SessionPool && pool != protocol.DefaultPool {
			all = append(all, at{fleet, pool})
		}
	}
	return all, err
}

// OwnPools are the pools of a fleet that have accounts of their own in the server of a data
// directory: those of workers with tokens, but for the default one.
func OwnPools(data string, fleet protocol.Fleet) (pools []protocol.Pool, err error) {
	all, err := ownPools(data)
	for _, of := range all {
		if of.fleet == fleet {
			pools = append(pools, of.pool)
		}
	}
	return pools, err
}

// PoolOptions are [Server.Options] of a connection to the account of a pool, and its fleet's name.
func (s *Server) PoolOptions(fleet protocol.Fleet, pool protocol.Pool) ([]nats.Option, error) {
	token, err := LoadToken(PoolTokenFile(s.options.Data, fleet, pool))
	return append(s.Options(), nats.Token(token)), err
}

// OwnPools are [OwnPools] of the server, if others join it.
func (s *Server) OwnPools(fleet protocol.Fleet) ([]protocol.Pool, error) {
	if s.joins == nil {
		return nil, nil
	}
	return OwnPools(s.options.Data, fleet)
}

// account returns the account of the workers of a pool. The lock is held.
func (j *joins) account(of at) (*server.Account, error) {
	if account := j.accounts[of]; account != nil {
		return account, nil
	}
	account, _ := j.server.LookupOrRegisterAccount(fmt.Sprintf("WORKERS %s %s", of.fleet, of.pool))
	if err := j.connect(of, account); err != nil {
		return nil, err
	}
	j.accounts[of] = account
	return account, nil
}

// connect has an account import what its workers need, and export what they answer.
func (j *joins) connect(of at, workers *server.Account) error {
	streams, err := j.streamsOf(of)
	if err != nil {
		return err
	}
	var errs []error
	export := func(account *server.Account, subject string, kind server.ServiceRespType, patience time.Duration) {
		errs = append(errs, account.AddServiceExportWithResponse(subject, kind, server.IsPublicExport))
		if kind != server.Singleton {
			errs = append(errs, account.SetServiceExportResponseThreshold(subject, patience))
		}
	}
	fleet, pool := string(of.fleet), string(of.pool)
	for _, subject := range []string{fleet + ".>", "$O.>", "$JS.ACK.>", "$JS.API.INFO", "$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>"} {
		export(streams, subject, server.Singleton, 0)
	}
	export(streams, "$JS.API.CONSUMER.MSG.NEXT.>", server.Streamed, 30*time.Second) // more than a third of a lease
	export(streams, "$JS.API.DIRECT.GET.>", server.Streamed, 10*time.Second)
	errs = append(errs, streams.AddStreamExport(fleet+".>", server.IsPublicExport), streams.AddStreamExport("$KV."+wire.LimitsBucket(of.fleet)+".>", server.IsPublicExport))
	services, received := workerSubjects(of.fleet, of.pool)
	for _, subject := range append([]string{"$JS.API.INFO"}, services...) { // without the first the server may add all of $JS.API
		errs = append(errs, workers.AddServiceImport(streams, subject, subject))
	}
	for _, subject := range received {
		errs = append(errs, workers.AddStreamImport(streams, subject, ""))
	}
	for _, subject := range answered(of.fleet, of.pool) {
		if subject == fleet+".answer."+pool+".>" {
			export(workers, subject, server.Singleton, 0)
		} else {
			export(workers, subject, server.Streamed, 10*time.Second)
		}
		errs = append(errs, streams.AddServiceImport(workers, subject, subject))
	}
	return errors.Join(errs...)
}

// workerSubjects are the services that a worker uses, and what it receives.
func workerSubjects(fleet protocol.Fleet, pool protocol.Pool) (services, received []string) {
	own := func(kind, rest string) string { return string(fleet) + "." + kind + "." + string(pool) + rest }
	of := string(fleet)
	calls, claims, results, workspaces := wire.CallsStream(fleet), wire.ClaimsStream(fleet), wire.ResultsStream(fleet), wire.WorkspacesStream(fleet)
	services = []string{
		own("ready", ".>"), own("call", ".>"), of + ".result.>", of + ".output.>", own("question", ".>"), own("claim", ".*"), own("heartbeat", ".*"),
		of + ".workspace.*", "$JS.API.STREAM.INFO.*",
		"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls, "$JS.API.STREAM.MSG.DELETE." + calls,
		"$JS.API.DIRECT.GET." + claims, "$JS.API.STREAM.MSG.GET." + claims, "$JS.API.STREAM.MSG.DELETE." + claims,
		"$JS.API.DIRECT.GET." + results, "$JS.API.STREAM.MSG.GET." + results,
		"$JS.API.STREAM.MSG.GET." + workspaces, "$JS.API.STREAM.PURGE." + workspaces,
		"$JS.API.DIRECT.GET.KV_" + wire.PlacesBucket(fleet) + ".$KV." + wire.PlacesBucket(fleet) + "." + wire.BodiesKey,
		"$JS.API.DIRECT.GET.KV_" + wire.LimitsBucket(fleet) + ".>",
	}
	for _, consumer := range []string{wire.ReadyConsumer(pool), wire.CareConsumer(pool)} {
		services = append(services, "$JS.API.CONSUMER.INFO."+calls+"."+consumer, "$JS.API.CONSUMER.MSG.NEXT."+calls+"."+consumer, "$JS.ACK."+calls+"."+consumer+".>")
	}
	for _, bucket := range []string{wire.BlobsBucket(fleet), wire.KeptBucket(fleet), wire.BodiesBucket(fleet)} {
		services = append(services, "$O."+bucket+".>", "$JS.API.STREAM.MSG.GET.OBJ_"+bucket,
			"$JS.API.DIRECT.GET.OBJ_"+bucket, "$JS.API.DIRECT.GET.OBJ_"+bucket+".>", "$JS.API.STREAM.PURGE.OBJ_"+bucket)
	}
	return services, []string{own("stored", ".>"), own("beat", ".*"), own("ready", ".*.*.*"), "$KV." + wire.LimitsBucket(fleet) + ".>"}
}

// answered are the requests that workers answer.
func answered(fleet protocol.Fleet, pool protocol.Pool) []string {
	ask := wire.AskAllSubject(fleet, pool)
	return []string{wire.WhoSubject(fleet, pool), ask, ask + ".*", string(fleet) + ".answer." + string(pool) + ".>"}
}

// workerPermissions are the imports once more, so that a worker that lacks a right says so at its
// start, and the answers: to coordinators, and to each other.
func workerPermissions(fleet protocol.Fleet, pool protocol.Pool) *server.Permissions {
	services, received := workerSubjects(fleet, pool)
	inboxes := "_INBOX_" + join.RoleWorker.User() + ".>"
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: append(services, wire.AskSubject(fleet, pool, "*"), "_R_.>", inboxes)},
		Subscribe: &server.SubjectPermission{Allow: append(append(received, answered(fleet, pool)...), inboxes)},
	}
}

// joinable prepares a server for clients that join.
func (s *Server) joinable(options *server.Options) error {
	store := join.Store{Dir: s.options.Data}
	s.joins = &joins{store: store, own: s.token, logger: s.options.Logger, accounts: map[at]*server.Account{}, streams: map[at]*server.Account{}, pools: map[string]at{}}
	s.joins.seen, _ = os.Stat(store.File()) // first: a list that is written meanwhile differs
	var err error
	if s.joins.list, err = store.List(); err != nil {
		return err
	}
	for _, e := range s.joins.list { // also if an earlier version has made the token
		if e.Role == join.RoleWorker && e.Pool != protocol.DefaultPool {
			if _, err := LoadToken(PoolTokenFile(s.options.Data, e.Fleet, e.Pool)); err != nil {
				return err
			}
		}
	}
	options.CustomClientAuthentication = s.joins
	if !s.options.speaksTLS(options.Host) {
		return nil
	}
	authority, err := join.OpenAuthority(s.options.Data, append(addresses(options.Host), "localhost", "127.0.0.1", "::1"))
	if err != nil {
		return err
	}
	s.authority = authority
	options.TLS, options.TLSConfig, options.TLSTimeout = true, authority.Config(), authTimeout.Seconds()
	return nil
}

// speaksTLS reports whether the listener does. On loopback it need not.
func (o Options) speaksTLS(host string) bool { return o.TLS || !o.Plain && !IsLoopback(host) }

// IsLoopback reports whether only this machine reaches a host.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// addresses are where other machines reach a host that is listened on: for all interfaces their
// addresses.
func addresses(host string) []string {
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsUnspecified() {
		return []string{host}
	}
	var found []string
	all, _ := net.InterfaceAddrs() // without them the person names the address
	for _, address := range all {
		if net, is := address.(*net.IPNet); is && net.IP.IsGlobalUnicast() && (ip.To4() == nil || net.IP.To4() != nil) {
			found = append(found, net.IP.String())
		}
	}
	if len(found) == 0 {
		return []string{"127.0.0.1"}
	}
	return found
}

// Joinable returns how other machines reach the server.
func (s *Server) Joinable() join.Server {
	host, port, _ := net.SplitHostPort(s.options.Listen)
	all := join.Server{Plain: s.authority == nil}
	for _, address := range addresses(host) {
		all.Addresses = append(all.Addresses, net.JoinHostPort(address, port))
	}
	return all
}

// IsJoined reports whether the server is for other machines: workers join it with tokens.
func (s *Server) IsJoined() bool {
	host, _, _ := net.SplitHostPort(s.options.Listen)
	return s.joins != nil && (s.authority != nil || !IsLoopback(host))
}

// Certificates is the file of the server's authority; "" if it speaks no TLS.
func (s *Server) Certificates() string {
	if s.authority == nil {
		return ""
	}
	return s.authority.File()
}
