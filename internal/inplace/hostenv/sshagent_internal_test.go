package hostenv

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// rig is an agent with a key, and the door before it that knows one host.
type rig struct {
	host, other, user ssh.Signer
	keys              agent.Agent
	door              agent.ExtendedAgent // as commands see it
}

func newRig(t *testing.T) rig {
	t.Helper()
	r := rig{host: newKey(t), other: newKey(t), keys: agent.NewKeyring()}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.NoError(t, r.keys.Add(agent.AddedKey{PrivateKey: private}))
	r.user, err = ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	socket := filepath.Join(t.TempDir(), "a")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	var work sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); work.Wait() })
	work.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			work.Go(func() { _ = agent.ServeAgent(r.keys, conn); _ = conn.Close() })
		}
	})
	ours, theirs := net.Pipe()
	door := &sshAgent{socket: socket, known: map[string]bool{string(r.host.PublicKey().Marshal()): true}}
	work.Go(func() { door.answer(t.Context(), theirs); _ = theirs.Close() })
	t.Cleanup(func() { _ = ours.Close() })
	r.door = agent.NewClient(ours)
	return r
}

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer
}

// bind tells the door that a host has signed a session.
func (r rig) bind(t *testing.T, host ssh.Signer, session string, signs []byte, forwarding bool) error {
	t.Helper()
	signature, err := host.Sign(rand.Reader, signs)
	require.NoError(t, err)
	_, err = r.door.Extension(sessionBind, ssh.Marshal(struct {
		Key, Session, Signature []byte
		Forwarding              bool
	}{host.PublicKey().Marshal(), []byte(session), ssh.Marshal(signature), forwarding}))
	return err
}

// login is what a client has signed to log in in a session.
func login(session, service, method string) []byte {
	return ssh.Marshal(struct {
		Session               []byte
		Message               byte
		User, Service, Method string
		Signed                bool
		Algorithm             string
	}{[]byte(session), loginRequest, "git", service, method, true, "ssh-ed25519"})
}

func (r rig) sign(data []byte) error {
	_, err := r.door.Sign(r.user.PublicKey(), data)
	return err
}

// TestSSHAgent_SignsLoginsAtKnownHostsOnly holds each part of a login against the door.
func TestSSHAgent_SignsLoginsAtKnownHostsOnly(t *testing.T) {
	t.Parallel()
	const session, service, method = "session", "ssh-connection", "publickey"
	r := newRig(t)
	keys, err := r.door.List()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.Error(t, r.sign(login(session, service, method)), "nobody has bound the session")
	require.Error(t, r.sign(login("", service, method)), "nor is that one")
	require.Error(t, r.bind(t, r.other, session, []byte(session), false), "a host that is not known")
	require.Error(t, r.sign(login(session, service, method)))
	require.Error(t, r.bind(t, r.host, session, []byte("another"), false), "a session that the host has not signed")
	require.Error(t, r.sign(login(session, service, method)))
	require.Error(t, r.bind(t, r.host, session, []byte(session), true), "for others, behind the host")
	require.Error(t, r.sign(login(session, service, method)))

	require.NoError(t, r.bind(t, r.host, session, []byte(session), false))
	require.NoError(t, r.sign(login(session, service, method)))
	require.NoError(t, r.sign(login(session, service, "publickey-hostbound-v00@openssh.com")))
	require.Error(t, r.sign(login("another", service, method)))
	require.Error(t, r.sign(login(session, "other", method)))
	require.Error(t, r.sign(login(session, service, "hostbased")))
	require.Error(t, r.sign([]byte("SSHSIG and a commit")))
	require.Error(t, r.bind(t, r.other, session, []byte(session), false))
	require.Error(t, r.sign(login(session, service, method)), "the door forgets a session after a refusal")
}

// TestSSHAgent_ChangesNothing: no request reaches the agent that would change it.
func TestSSHAgent_ChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.Error(t, r.door.Add(agent.AddedKey{PrivateKey: private}))
	require.Error(t, r.door.Remove(r.user.PublicKey()))
	require.Error(t, r.door.RemoveAll())
	require.Error(t, r.door.Lock([]byte("x")))
	require.Error(t, r.door.Unlock([]byte("x")))
	_, err = r.door.Extension("query", nil)
	require.Error(t, err)
	keys, err := r.keys.List()
	require.NoError(t, err)
	require.Len(t, keys, 1)
}
