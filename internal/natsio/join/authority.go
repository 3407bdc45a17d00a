package join

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Authority signs the certificates of one server. Clients know it by its key, so its own
// certificate is renewed with the same key, and their tokens stay good.
type Authority struct {
	dir   string
	names []string // hosts of the server's certificate
	key   *ecdsa.PrivateKey
	now   func() time.Time

	mu     sync.Mutex
	root   *x509.Certificate
	served *tls.Certificate
}

const (
	// AuthorityFile has the certificate of the authority, for clients that check by --tls-ca.
	AuthorityFile    = "join-ca.pem"
	authorityKeyFile = "join-ca-key.pem"
	maxPEM           = 64 << 10

	rootYears = 10
	leafDays  = 90
	day       = 24 * time.Hour
	// renewBefore is how long before its end a certificate is renewed, at the next connection; the
	// root's is renewed a year before.
	renewBefore = 30 * day
	// backdated is for machines whose clocks are behind.
	backdated = 24 * time.Hour
)

// serverName is in each certificate of a server. Clients that know the authority check this name:
// the address by which they reach the server may be any.
const serverName = "server.toolfleet.internal"

// OpenAuthority returns the authority of a data directory, and makes it if there is none.
func OpenAuthority(dir string, names []string) (*Authority, error) {
	a := &Authority{dir: dir, names: names, now: time.Now}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("authority of certificates in %s: %w", dir, err)
	}
	return a, nil
}

func (a *Authority) open() error {
	der, err := readPEM(filepath.Join(a.dir, authorityKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a.make()
	}
	if err != nil {
		return err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	key, is := parsed.(*ecdsa.PrivateKey)
	if err != nil || !is {
		return errors.Join(fmt.Errorf("%s is no key of the authority", authorityKeyFile), err)
	}
	a.key = key
	if der, err = readPEM(filepath.Join(a.dir, AuthorityFile)); errors.Is(err, fs.ErrNotExist) {
		return a.sign()
	}
	if err != nil {
		return err
	}
	if a.root, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	if !key.PublicKey.Equal(a.root.PublicKey) {
		return fmt.Errorf("%s is not the certificate of %s", AuthorityFile, authorityKeyFile)
	}
	return nil
}

// make makes the key, and then the certificate: a process that ends between them leaves the key,
// with which the next one continues.
func (a *Authority) make() (err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err == nil {
		err = regular.Create(filepath.Join(a.dir, authorityKeyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
	if err != nil {
		return err
	}
	return a.sign()
}

// sign makes the certificate of the authority.
func (a *Authority) sign() error {
	now := a.now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "toolfleet authority"}, NotBefore: now.Add(-backdated), NotAfter: now.AddDate(rootYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return err
	}
	if a.root, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	return regular.Replace(filepath.Join(a.dir, AuthorityFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// File has the certificate of the authority.
func (a *Authority) File() string { return filepath.Join(a.dir, AuthorityFile) }

// Fingerprint is what clients know the authority by.
func (a *Authority) Fingerprint() string { return fingerprint(a.key.Public()) }

func fingerprint(key crypto.PublicKey) string {
	der, _ := x509.MarshalPKIXPublicKey(key) // of a kind that it knows, or of a certificate that was parsed
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// Config is for a server's listener. Its certificate is made when it is needed, and is renewed
// before it expires.
func (a *Authority) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.certificate() }}
}

func (a *Authority) certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.served != nil && now.Add(renewBefore).Before(a.served.Leaf.NotAfter) {
		return a.served, nil
	}
	if now.AddDate(1, 0, 0).After(a.root.NotAfter) {
		if err := a.sign(); err != nil {
			return nil, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "toolfleet server"}, NotBefore: now.Add(-backdated), NotAfter: now.Add(leafDays * day),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{serverName},
	}
	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err == nil {
		a.served = &tls.Certificate{Certificate: [][]byte{der, a.root.Raw}, PrivateKey: key, Leaf: leaf}
	}
	return a.served, err
}

// serial is a new serial number.
func serial() *big.Int {
	bytes := make([]byte, 16)
	_, _ = rand.Read(bytes) // never fails
	return new(big.Int).Rsh(new(big.Int).SetBytes(bytes), 1)
}

// ErrAuthority is wrapped by the error of a connection to a server of another authority.
var ErrAuthority = errors.New("the server is not the one that the token is for: its authority is another one")

// FingerprintIn returns the fingerprint of the authority of a data directory.
func FingerprintIn(dir string) (string, error) {
	der, err := readPEM(filepath.Join(dir, AuthorityFile))
	if err != nil {
		return "", err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return "", fmt.Errorf("%s: %w", AuthorityFile, err)
	}
	return fingerprint(root.PublicKey), nil
}

// Trust is for clients that know an authority by its fingerprint, and no other.
func Trust(authority string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: serverName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks the whole chain
		VerifyConnection: func(state tls.ConnectionState) error {
			chain := state.PeerCertificates
			i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return fingerprint(c.PublicKey) == authority })
			if i < 1 { // the first is the server's own
				return ErrAuthority
			}
			roots := x509.NewCertPool()
			roots.AddCert(chain[i])
			_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: serverName})
			return err
		},
	}
}

// readPEM returns the content of the first block of a file.
func readPEM(path string) ([]byte, error) {
	content, err := regular.Read(path, maxPEM)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s has no PEM block", path)
	}
	return block.Bytes, nil
}
