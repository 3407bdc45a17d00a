package workspace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxBody is more than any body has.
const maxBody = 2 * snapshot.MaxPart

// bodies is where a fleet has its bodies: in its NATS servers, or in an S3 store. It is safe for
// concurrent use. What is stored under a name again is another one of that name, so that removing
// an old one never removes what was stored meanwhile.
type bodies interface {
	// get returns a body; the error wraps ErrMissing when there is none.
	get(ctx context.Context, name string) ([]byte, error)
	// put stores a body, unless one of that name is young.
	put(ctx context.Context, name string, body []byte) error
	// keep has a body count as stored now, unless it is young; the error wraps ErrMissing when
	// there is none.
	keep(ctx context.Context, name string) error
	// before returns the bodies that were stored before a time.
	before(ctx context.Context, at time.Time) ([]stored, error)
	// remove removes some of them.
	remove(ctx context.Context, old []stored) error
}

// stored is a body as it was listed.
type stored struct {
	name string
	key  string                // in an S3 store
	copy bool                  // there is a later one of that name
	info *jetstream.ObjectInfo // in an object store
}

// natsBodies are those in the object store of a fleet.
type natsBodies struct {
	js    jetstream.JetStream
	store jetstream.ObjectStore
	fleet protocol.Fleet
	young time.Duration // how old a body is at most that is not stored again
}

func (b natsBodies) get(ctx context.Context, name string) ([]byte, error) {
	for again := true; ; again = false { // it may be stored once more while it is read
		body, err := b.read(ctx, name)
		switch lost := errors.Is(err, jetstream.ErrMsgNotFound); {
		case lost && again:
		case lost, errors.Is(err, jetstream.ErrObjectNotFound):
			return nil, fmt.Errorf("body %s: %w: %w", name, ErrMissing, err)
		case errors.Is(err, jetstream.ErrDigestMismatch):
			return nil, fmt.Errorf("body %s: %w: %w", name, snapshot.ErrCorrupt, err)
		default:
			return body, err
		}
	}
}

func (b natsBodies) read(ctx context.Context, name string) ([]byte, error) {
	object, err := natsio.GetObject(ctx, b.js, wire.BodiesBucket(b.fleet), name)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(object, maxBody))
	return body, errors.Join(err, object.Close())
}

func (b natsBodies) put(ctx context.Context, name string, body []byte) error {
	info, err := b.store.GetInfo(ctx, name)
	if err == nil && time.Since(info.ModTime) < b.young {
		return nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("look for body %s: %w", name, err)
	}
	_, err = natsio.PutObject(ctx, b.js, wire.BodiesBucket(b.fleet), name, bytes.NewReader(body))
	return err
}

func (b natsBodies) keep(ctx context.Context, name string) error {
	err := natsio.RenewObject(ctx, b.js, wire.BodiesBucket(b.fleet), name, b.young)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("body %s: %w: %w", name, ErrMissing, err)
	}
	return err
}

func (b natsBodies) before(ctx context.Context, at time.Time) (old []stored, err error) {
	infos, err := natsio.ListObjects(ctx, b.js, wire.BodiesBucket(b.fleet), func(string) bool { return true })
	for _, info := range infos {
		if !info.Deleted && !info.ModTime.After(at) {
			old = append(old, stored{name: info.Name, info: info})
		}
	}
	return old, err
}

func (b natsBodies) remove(ctx context.Context, old []stored) error {
	infos := make([]*jetstream.ObjectInfo, 0, len(old))
	for _, o := range old {
		infos = append(infos, o.info)
	}
	return natsio.DeleteOldObjects(ctx, b.js, wire.BodiesBucket(b.fleet), slices.Clip(infos)...)
}

// lasts reports whether an error of a store will be the same when it is asked again.
func lasts(err error) bool {
	if errors.Is(err, ErrMissing) || errors.Is(err, ErrInvalid) || errors.Is(err, snapshot.ErrCorrupt) ||
		errors.Is(err, jetstream.ErrBucketNotFound) || !natsio.Repeatable(err) {
		return true
	}
	response, is := errors.AsType[minio.ErrorResponse](err)
	return is && (isFull(err) || response.StatusCode >= 400 && response.StatusCode < 500 &&
		response.StatusCode != http.StatusRequestTimeout && response.StatusCode != http.StatusTooManyRequests)
}

// isFull reports whether a store has no room.
func isFull(err error) bool {
	response, is := errors.AsType[minio.ErrorResponse](err)
	return natsio.NoRoom(err) || is && (response.StatusCode == http.StatusInsufficientStorage || strings.Contains(response.Code, "QuotaExceeded"))
}

// s3Endpoint is the server of a URL that names none.
const s3Endpoint = "https://s3.amazonaws.com"

// s3Bodies are those below a prefix of an S3 bucket, each under PREFIX/bodies/NAME/ID.
type s3Bodies struct {
	client *minio.Client
	bucket string
	prefix string // ends with a slash, unless it is empty
	bound  record
	young  time.Duration // as of natsBodies
}

// openS3 opens the bodies that a record names. It looks for no server.
func openS3(r record) (*s3Bodies, error) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, fmt.Errorf("bodies %q: %w", r.URL, err)
	}
	query := u.Query()
	for key := range query {
		if key != "endpoint" && key != "region" {
			return nil, fmt.Errorf("bodies %q: unknown parameter %q: allowed are endpoint and region", r.URL, key)
		}
	}
	prefix := strings.Trim(u.Path, "/")
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || path.Clean("/"+prefix) != "/"+prefix {
		return nil, fmt.Errorf("bodies %q: must be s3://BUCKET/PREFIX?endpoint=URL&region=NAME; credentials are from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", r.URL)
	}
	server := query.Get("endpoint")
	if server == "" {
		server = s3Endpoint
	}
	endpoint, err := url.Parse(server)
	if err != nil || endpoint.Host == "" || strings.Trim(endpoint.Path, "/") != "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return nil, fmt.Errorf("bodies %q: endpoint %q: must be http://HOST:PORT or https://HOST:PORT", r.URL, server)
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Secure: endpoint.Scheme == "https", Region: query.Get("region"), MaxRetries: 3,
		Creds: credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}),
	})
	if err != nil {
		return nil, fmt.Errorf("bodies %q: %w", r.URL, err)
	}
	if prefix != "" {
		prefix += "/"
	}
	return &s3Bodies{client: client, bucket: u.Host, prefix: prefix, bound: r, young: refresh}, nil
}

// marker is the object that says which fleet a prefix belongs to.
func (b *s3Bodies) marker() string { return b.prefix + "toolfleet-fleet.json" }

// owner reads the marker; the zero record means that there is none.
func (b *s3Bodies) owner(ctx context.Context) (r record, err error) {
	body, err := b.read(ctx, b.marker())
	if isMissing(err) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("read %s of bucket %s: %w", b.marker(), b.bucket, err)
	}
	return r, nil
}

// claim has the prefix belong to the fleet of the record, unless it is another one's.
func (b *s3Bodies) claim(ctx context.Context) error {
	owner, err := b.owner(ctx)
	if err == nil && owner == (record{}) {
		body, encodeErr := json.Marshal(b.bound)
		if encodeErr != nil {
			return encodeErr
		}
		options := minio.PutObjectOptions{}
		options.SetMatchETagExcept("*") // of several at once one is stored
		_, err = b.client.PutObject(ctx, b.bucket, b.marker(), bytes.NewReader(body), int64(len(body)), options)
		if err == nil || minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed {
			owner, err = b.owner(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("bodies %s: %w", b.bound.URL, err)
	}
	if owner.ID != b.bound.ID {
		return fmt.Errorf("bodies %s: %w: fleet %q of another server has its bodies there; give each fleet a prefix", b.bound.URL, ErrForeign, owner.Fleet)
	}
	return nil
}

// of begins the keys of the bodies of a name; "" of all.
func (b *s3Bodies) of(name string) string {
	if name != "" {
		name += "/"
	}
	return b.prefix + "bodies/" + name
}

// list calls do with what is below a prefix.
func (b *s3Bodies) list(ctx context.Context, prefix string, do func(minio.ObjectInfo)) error {
	for info := range b.client.ListObjectsIter(ctx, b.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if info.Err != nil {
			return fmt.Errorf("list %s of bucket %s: %w", prefix, b.bucket, info.Err)
		}
		do(info)
	}
	return ctx.Err()
}

func (b *s3Bodies) get(ctx context.Context, name string) ([]byte, error) {
	for range 3 { // an older one may be removed meanwhile
		last, err := b.last(ctx, name)
		if err != nil {
			return nil, err
		}
		if last.Key == "" {
			break
		}
		body, err := b.read(ctx, last.Key)
		if !isMissing(err) {
			return body, err
		}
	}
	return nil, fmt.Errorf("body %s: %w", name, ErrMissing)
}

func (b *s3Bodies) read(ctx context.Context, key string) (body []byte, err error) {
	object, err := b.client.GetObject(ctx, b.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	return io.ReadAll(io.LimitReader(object, maxBody))
}

func isMissing(err error) bool {
	response, is := errors.AsType[minio.ErrorResponse](err)
	return is && response.Code == minio.NoSuchKey
}

func (b *s3Bodies) put(ctx context.Context, name string, body []byte) error {
	if last, err := b.last(ctx, name); err != nil || time.Since(last.LastModified) < b.young {
		return err
	}
	key := b.of(name) + uuid.NewString()
	if _, err := b.client.PutObject(ctx, b.bucket, key, bytes.NewReader(body), int64(len(body)), minio.PutObjectOptions{}); err != nil {
		return fmt.Errorf("store body %s in bucket %s: %w", name, b.bucket, err)
	}
	return nil
}

// last is the latest body of a name; the zero value if there is none.
func (b *s3Bodies) last(ctx context.Context, name string) (last minio.ObjectInfo, err error) {
	err = b.list(ctx, b.of(name), func(info minio.ObjectInfo) {
		if isLater(info, last) {
			last = info
		}
	})
	return last, err
}

// isLater reports whether one of two bodies of a name was stored after the other.
func isLater(info, other minio.ObjectInfo) bool {
	return other.Key == "" || cmp.Or(info.LastModified.Compare(other.LastModified), cmp.Compare(info.Key, other.Key)) > 0
}

// keep copies an old body, within the store.
func (b *s3Bodies) keep(ctx context.Context, name string) error {
	for range 3 { // an older one may be removed meanwhile
		last, err := b.last(ctx, name)
		if err != nil || time.Since(last.LastModified) < b.young {
			return err
		}
		if last.Key == "" {
			break
		}
		_, err = b.client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b.bucket, Object: b.of(name) + uuid.NewString()},
			minio.CopySrcOptions{Bucket: b.bucket, Object: last.Key})
		if !isMissing(err) {
			return err
		}
	}
	return fmt.Errorf("body %s: %w", name, ErrMissing)
}

func (b *s3Bodies) before(ctx context.Context, at time.Time) (old []stored, err error) {
	if err := b.claim(ctx); err != nil { // what another fleet needs is not for this one to say
		return nil, err
	}
	last := map[string]minio.ObjectInfo{}
	err = b.list(ctx, b.of(""), func(info minio.ObjectInfo) {
		name, _, is := strings.Cut(strings.TrimPrefix(info.Key, b.of("")), "/")
		if is && isLater(info, last[name]) {
			last[name] = info
		}
		if is && !info.LastModified.After(at) {
			old = append(old, stored{name: name, key: info.Key})
		}
	})
	for i, o := range old {
		old[i].copy = o.key != last[o.name].Key
	}
	return old, err
}

func (b *s3Bodies) remove(ctx context.Context, old []stored) error {
	for _, o := range old {
		if err := b.client.RemoveObject(ctx, b.bucket, o.key, minio.RemoveObjectOptions{}); err != nil {
			return fmt.Errorf("remove body %s from bucket %s: %w", o.name, b.bucket, err)
		}
	}
	return nil
}
