package natsio_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// TestPutObject: whatever is put, the object store has it, once.
func TestPutObject(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(tf)
	store, err := f.JS.ObjectStore(t.Context(), bucket)
	require.NoError(t, err)
	messages := func() uint64 {
		stream := mustStream(t, f.JS, natsio.ObjectStream(bucket))
		return stream.CachedInfo().State.Msgs
	}
	for name, content := range map[string]string{
		"empty": "", "one chunk": "x", "just one": strings.Repeat("x", 128<<10), "several": strings.Repeat("y", 300<<10),
	} {
		before := messages()
		for range 2 { // in the place of what was there
			info, err := natsio.PutObject(t.Context(), f.JS, bucket, "a/b "+name, iotest.OneByteReader(strings.NewReader(content)))
			require.NoError(t, err, name)
			require.EqualValues(t, len(content), info.Size)
			got, err := store.GetString(t.Context(), "a/b "+name)
			require.NoError(t, err, "its digest is right, too")
			require.Equal(t, content, got)
			require.EqualValues(t, 1+info.Chunks, messages()-before, name)
		}
		require.NoError(t, store.Delete(t.Context(), "a/b "+name))
		_, err := natsio.PutObject(t.Context(), f.JS, bucket, "a/b "+name, strings.NewReader(content))
		require.NoError(t, err, "after it was deleted")
	}
	before := messages()
	broken := errors.New("broken")
	_, err = natsio.PutObject(t.Context(), f.JS, bucket, "a/b several",
		io.MultiReader(strings.NewReader(strings.Repeat("z", 300<<10)), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Equal(t, before, messages(), "nothing is left of it")
	got, err := store.GetString(t.Context(), "a/b several")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("y", 300<<10), got, "what was there stays")
	_, err = natsio.PutObject(t.Context(), f.JS, "NONE", "a", strings.NewReader("x"))
	require.ErrorIs(t, err, jetstream.ErrBucketNotFound)
}

// TestPutObject_SeveralAtOnce: one of them stays, and nothing of the others.
func TestPutObject_SeveralAtOnce(t *testing.T) {
	t.Parallel()
	for servers, open := range map[int]func(*testing.T) jetstream.JetStream{
		1: func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.New(t, natsio.Topology{}).JS },
		3: func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.NewCluster(t).JS },
	} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			js := open(t)
			_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "B", Replicas: servers})
			require.NoError(t, err)
			for range 5 {
				var all sync.WaitGroup
				for i := range 8 {
					all.Go(func() {
						if _, err := natsio.PutObject(t.Context(), js, "B", "a", strings.NewReader(strings.Repeat(string(rune('a'+i)), 200<<10))); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				var got []byte
				require.Eventually(t, func() (found bool) { // a server that lags names an earlier one
					got, err = natsio.GetObjectBytes(t.Context(), js, "B", "a")
					return err == nil
				}, 2*time.Minute, 10*time.Millisecond)
				require.Equal(t, bytes.Repeat(got[:1], 200<<10), got)
				stream := mustStream(t, js, natsio.ObjectStream("B"))
				require.EqualValues(t, 1+2, stream.CachedInfo().State.Msgs, "what it is, and two chunks")
			}
		})
	}
}

// openObjects opens an object store, and the stream in which it has its objects.
func openObjects(t *testing.T, f *natsiotest.Fleet, bucket string) (jetstream.ObjectStore, jetstream.Stream) {
	t.Helper()
	store, err := f.JS.ObjectStore(t.Context(), bucket)
	require.NoError(t, err)
	stream := mustStream(t, f.JS, natsio.ObjectStream(bucket))
	return store, stream
}

// TestDeleteObjects: nothing is left, also where the store's own Delete did a part of it.
func TestDeleteObjects(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(tf)
	store, stream := openObjects(t, f, bucket)
	put := func() *jetstream.ObjectInfo {
		info := mustPut(t, f.JS, bucket, "a/b c", strings.NewReader(strings.Repeat("x", 300<<10)))
		return info
	}
	gone := func() {
		require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, bucket, "a/b c"))
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.State.Msgs)
	}
	gone()
	put()
	gone()
	info := put() // the mark is there, and the parts are, too
	info.Deleted, info.Size, info.Chunks, info.Digest = true, 0, 0, ""
	mark, err := json.Marshal(info)
	require.NoError(t, err)
	traces := stream.CachedInfo().Config.Subjects
	require.Len(t, traces, 2)
	_, err = f.JS.PublishMsg(t.Context(), &nats.Msg{
		Subject: strings.Replace(traces[1], ">", base64.URLEncoding.EncodeToString([]byte("a/b c")), 1),
		Data:    mark, Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}},
	})
	require.NoError(t, err)
	_, err = store.GetInfo(t.Context(), "a/b c")
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	gone()
	require.ErrorIs(t, natsio.DeleteObjects(t.Context(), f.JS, "NONE", "a"), jetstream.ErrStreamNotFound)
}

// TestDeleteObjects_BesideOneThatIsStored: it is there as a whole, or not at all.
func TestDeleteObjects_BesideOneThatIsStored(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(tf)
	store, stream := openObjects(t, f, bucket)
	content := strings.Repeat("x", 200<<10)
	for range 50 {
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := natsio.PutObject(t.Context(), f.JS, bucket, "a", strings.NewReader(content)); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if err := natsio.DeleteObjects(t.Context(), f.JS, bucket, "a"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		want := uint64(0)
		if got, err := store.GetString(t.Context(), "a"); err == nil {
			want = 1 + 2
			require.Equal(t, content, got)
		} else {
			require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
		}
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, info.State.Msgs)
	}
}

// TestListObjects_TheLastIsRemovedMeanwhile: before whatever the list asks for, and it ends.
func TestListObjects_TheLastIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	bucket := wire.KeptBucket(tf)
	address, err := url.Parse(f.Server.URL())
	require.NoError(t, err)
	cable := natsiotest.NewCable(t, address.Host)
	nc, err := natsio.Connect(t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: t.Name(), Creds: f.Server.CredentialFile()})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	for at := 1; ; at++ {
		for _, name := range []string{"a/1", "a/2 ü", "b/1"} {
			mustPut(t, f.JS, bucket, name, strings.NewReader("x"))
		}
		asked, removed := 0, false
		cable.Before(func(said []byte) bool {
			asked += bytes.Count(said, []byte("$JS.API."))
			return asked >= at
		}, func() {
			removed = true
			for _, name := range []string{"a/1", "a/2 ü", "b/1"} {
				if err := natsio.DeleteObjects(t.Context(), f.JS, bucket, name); err != nil {
					t.Error(err)
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		objects, err := natsio.ListObjects(ctx, js, bucket, func(name string) bool { return strings.HasPrefix(name, "a/") })
		cancel()
		require.NoError(t, err)
		if !removed { // nothing more is asked
			var names []string
			for _, object := range objects {
				names = append(names, object.Name)
			}
			require.ElementsMatch(t, []string{"a/1", "a/2 ü"}, names)
			require.Greater(t, at, 3)
			return
		}
	}
}

// TestListObjects_AsksOnceForMany: as many requests as there are objects take minutes when the
// server is far away.
func TestListObjects_AsksOnceForMany(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket, names := wire.KeptBucket(tf), []string{}
	for i := range 600 {
		names = append(names, fmt.Sprintf("a/%d ü", i))
		mustPut(t, f.JS, bucket, names[i], strings.NewReader("x"))
	}
	before := f.NC.Stats().OutMsgs
	objects, err := natsio.ListObjects(t.Context(), f.JS, bucket, func(string) bool { return true })
	require.NoError(t, err)
	require.Less(t, f.NC.Stats().OutMsgs-before, uint64(20))
	found := []string{}
	for _, object := range objects {
		require.EqualValues(t, 1, object.Size)
		found = append(found, object.Name)
	}
	require.ElementsMatch(t, names, found)
	stream := mustStream(t, f.JS, natsio.ObjectStream(bucket))
	require.Zero(t, stream.CachedInfo().State.Consumers)

	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, bucket, names[1:]...))
	objects, err = natsio.ListObjects(t.Context(), f.JS, bucket, func(string) bool { return true })
	require.NoError(t, err)
	require.Len(t, objects, 1)
	require.Equal(t, names[0], objects[0].Name)
}

// TestPutObject_WhenTheStoreIsFull: nothing is pushed out, and nothing of it stays.
func TestPutObject_WhenTheStoreIsFull(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{Storage: natsio.Storage{KeepBytes: 500 << 10}})
	mustPut(t, f.JS, wire.KeptBucket(tf), "first", strings.NewReader(strings.Repeat("x", 300<<10)))
	_, err := natsio.PutObject(t.Context(), f.JS, wire.KeptBucket(tf), "second", strings.NewReader(strings.Repeat("x", 300<<10)))
	require.ErrorContains(t, err, "maximum bytes exceeded")
	_, err = natsio.PutObject(t.Context(), f.JS, wire.KeptBucket(tf), "third", strings.NewReader(strings.Repeat("x", 100<<10)))
	require.NoError(t, err, "there is room again")
	store, err := f.JS.ObjectStore(t.Context(), wire.KeptBucket(tf))
	require.NoError(t, err)
	got, err := store.GetBytes(t.Context(), "first")
	require.NoError(t, err)
	require.Len(t, got, 300<<10)
	for n := 64 << 10; n > 0; n /= 2 { // to the last byte
		for err = nil; err == nil; {
			_, err = f.JS.Publish(t.Context(), "$O."+wire.KeptBucket(tf)+".C.more", make([]byte, n))
		}
	}
	require.ErrorContains(t, store.Delete(t.Context(), "first"), "maximum bytes exceeded")
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.KeptBucket(tf), "first"))
	_, err = store.GetInfo(t.Context(), "first")
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
}

// TestPutObject_WhereMessagesAreSmall: what a server takes at once bounds the parts of an object,
// not the object.
func TestPutObject_WhereMessagesAreSmall(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 32 << 10, NoSigs: true, NoLog: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), "nats://"+s.Addr().String(), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "SMALL"})
	require.NoError(t, err)
	content := strings.Repeat("x", 300<<10)
	info := mustPut(t, js, "SMALL", "a", strings.NewReader(content))
	require.EqualValues(t, 10, info.Chunks)
	got, err := store.GetString(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, content, got)
}

// A reader that is not wanted any more ends, although nothing comes and its context would end much
// later.
func TestGetObject_NoticesThatItIsCancelled(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	content := strings.Repeat("x", 2<<20)
	mustPut(t, f.JS, wire.BlobsBucket(tf), "a", strings.NewReader(content))
	nc := f.Connect()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	object, err := natsio.GetObject(ctx, js, wire.BlobsBucket(tf), "a")
	require.NoError(t, err)
	got, err := io.ReadAll(object)
	require.NoError(t, err)
	require.Equal(t, content, string(got))
	require.NoError(t, object.Close())

	object, err = natsio.GetObject(ctx, js, wire.BlobsBucket(tf), "a")
	require.NoError(t, err)
	defer func() { _ = object.Close() }()
	stream := mustStream(t, f.JS, natsio.ObjectStream(wire.BlobsBucket(tf)))
	require.Zero(t, stream.CachedInfo().State.Consumers, "workers may make none")
	nc.Close()
	time.AfterFunc(100*time.Millisecond, cancel) // while it waits; earlier is noticed, too
	_, err = io.Copy(io.Discard, object)
	require.ErrorIs(t, err, context.Canceled)
}

// TestGetObject_ReplacedMeanwhile: whoever reads what is replaced before the first part gets the
// new object, and an error after it. A server that is behind answers alike.
func TestGetObject_ReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(tf)
	put := func(content string) {
		t.Helper()
		mustPut(t, f.JS, bucket, "a", strings.NewReader(content))
	}
	for _, content := range []string{strings.Repeat("y", 300<<10), ""} {
		put(strings.Repeat("x", 300<<10))
		object, err := natsio.GetObject(t.Context(), f.JS, bucket, "a")
		require.NoError(t, err)
		put(content)
		got, err := io.ReadAll(object)
		require.NoError(t, err)
		require.Equal(t, content, string(got))
	}
	put(strings.Repeat("x", 300<<10))
	object, err := natsio.GetObject(t.Context(), f.JS, bucket, "a")
	require.NoError(t, err)
	_, err = io.ReadFull(object, make([]byte, 1))
	require.NoError(t, err)
	put(strings.Repeat("y", 300<<10))
	_, err = io.ReadAll(object)
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound, "never a part of one and a part of the other")
}

// A chunk whose answer is lost is sent again, and is in the object once.
func TestPutObject_ALostAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc, link := f.ConnectVia()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	bucket := wire.KeptBucket(f.Name)
	stored, err := f.NC.SubscribeSync("$O." + bucket + ".C.>")
	require.NoError(t, err)
	body := strings.Repeat("0123456789", 50_000)
	lost := &losing{Reader: strings.NewReader(body), at: 200_000, lose: func() {
		link.Deafen()
		go func() {
			for range 3 { // the chunk whose answer is lost is among them
				_, _ = stored.NextMsg(time.Minute)
			}
			link.Mend()
		}()
	}}
	mustPut(t, js, bucket, "a", lost)
	got, err := natsio.GetObjectBytes(t.Context(), f.JS, bucket, "a")
	require.NoError(t, err)
	require.Equal(t, body, string(got))
}

// The server says that it is not available, and has stored the message or has not: the object is
// stored, whole.
func TestPutObject_AnswersThatSayNothing(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(f.Name)
	for _, kind := range []string{".C.", ".M."} {
		for _, fate := range []natsiotest.Fate{natsiotest.Made, natsiotest.Refused, natsiotest.Unanswered} {
			nc, link := f.ConnectVia()
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			met := false
			link.OnWrite(func(subject string) natsiotest.Fate {
				if met || !strings.HasPrefix(subject, "$O."+bucket+kind) {
					return natsiotest.Passes
				}
				met = true
				return fate
			})
			name := kind + string(rune('a'+int(fate)))
			_, err = natsio.PutObject(t.Context(), js, bucket, name, strings.NewReader("content"))
			require.NoError(t, err, name)
			got, err := natsio.GetObjectBytes(t.Context(), f.JS, bucket, name)
			require.NoError(t, err, name)
			require.Equal(t, "content", string(got))
		}
	}
}

// losing is a reader that calls lose once so much was read.
type losing struct {
	io.Reader

	at   int
	lose func()
}

func (l *losing) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if l.at -= n; l.at <= 0 && l.lose != nil {
		l.lose()
		l.lose = nil
	}
	return n, err
}

// An object that is renewed after a sweep has listed it stays; one that the sweep has removed
// cannot be renewed, also if the sweep was cut short.
func TestRenewObject_WhileOldOnesAreRemoved(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.BodiesBucket(f.Name)
	_, stream := openObjects(t, f, bucket)
	content := strings.Repeat("x", 300<<10)
	list := func() []*jetstream.ObjectInfo {
		objects, err := natsio.ListObjects(t.Context(), f.JS, bucket, func(string) bool { return true })
		require.NoError(t, err)
		return objects
	}
	for _, text := range []string{content, ""} {
		mustPut(t, f.JS, bucket, "a", strings.NewReader(text))
		old := list()
		require.NoError(t, natsio.RenewObject(t.Context(), f.JS, bucket, "a", time.Hour))
		require.True(t, old[0].ModTime.Equal(list()[0].ModTime), "it is young")
		require.NoError(t, natsio.RenewObject(t.Context(), f.JS, bucket, "a", 0))
		require.True(t, old[0].ModTime.Before(list()[0].ModTime))
		require.NoError(t, natsio.DeleteOldObjects(t.Context(), f.JS, bucket, old...))
		got, err := natsio.GetObjectBytes(t.Context(), f.JS, bucket, "a")
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		require.NoError(t, natsio.DeleteOldObjects(t.Context(), f.JS, bucket, list()...))
		require.ErrorIs(t, natsio.RenewObject(t.Context(), f.JS, bucket, "a", 0), jetstream.ErrObjectNotFound)
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.State.Msgs)
	}
	info := mustPut(t, f.JS, bucket, "a", strings.NewReader(content))
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O."+bucket+".C."+info.NUID)))
	require.ErrorIs(t, natsio.RenewObject(t.Context(), f.JS, bucket, "a", 0), jetstream.ErrObjectNotFound, "its chunks are gone")
}

// Chunks of a writer that was killed before it named them are removed, once they are old; marks of
// what a tenant stores, and what a record names, are not.
func TestSweepChunks_OfLostWriters(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(f.Name)
	_, stream := openObjects(t, f, bucket)
	publish := func(chunks string) {
		for range 3 {
			_, err := f.JS.Publish(t.Context(), "$O."+bucket+".C."+chunks, make([]byte, 128<<10))
			require.NoError(t, err)
		}
	}
	publish("dead")
	publish("tenant.dead")
	publish("tenant.journal.s-1.mark")
	_, err := natsio.PutObject(natsio.StoredBy(t.Context(), "acme"), f.JS, bucket, "a", strings.NewReader(strings.Repeat("x", 300<<10)))
	require.NoError(t, err)
	now := time.Now().Add(time.Minute)
	n, err := natsio.SweepChunks(t.Context(), f.JS, bucket)
	require.NoError(t, err)
	require.Zero(t, n, "their writer may name them soon")
	n, err = natsio.SweepChunksBefore(t.Context(), f.JS, bucket, now)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3+1+3, info.State.Msgs)
	got, err := natsio.GetObjectBytes(t.Context(), f.JS, bucket, "a")
	require.NoError(t, err)
	require.Len(t, got, 300<<10)
}

// TestPutObject_StoppedBetweenItsChunks: the first ones may have been removed, so the object is not
// stored, and nothing of it is left.
func TestPutObject_StoppedBetweenItsChunks(t *testing.T) { //nolint:paralleltest // the age is that of all
	natsio.SetOrphanAge(t, time.Second)
	f := natsiotest.New(t, natsio.Topology{})
	bucket := wire.KeptBucket(f.Name)
	_, stream := openObjects(t, f, bucket)
	stop := readerFunc(func([]byte) (int, error) {
		time.Sleep(600 * time.Millisecond)
		n, err := natsio.SweepChunksBefore(t.Context(), f.JS, bucket, time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return 0, io.EOF
	})
	half := strings.Repeat("x", 1<<20)
	_, err := natsio.PutObject(t.Context(), f.JS, bucket, "a", io.MultiReader(strings.NewReader(half), stop, strings.NewReader(half)))
	require.ErrorContains(t, err, "was stopped while it stored an object")
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Of several servers the one that answers may not know an object yet that was just stored.
func TestRenewObject_OnSeveralServers(t *testing.T) {
	t.Parallel()
	js := natsiotest.NewCluster(t).JS
	_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "B", Replicas: 3})
	require.NoError(t, err)
	for i := range 30 {
		name := fmt.Sprint(i)
		mustPut(t, js, "B", name, strings.NewReader("content"))
		require.NoError(t, natsio.RenewObject(t.Context(), js, "B", name, 0))
	}
	require.ErrorIs(t, natsio.RenewObject(t.Context(), js, "B", "none", 0), jetstream.ErrObjectNotFound)
}

func mustPut(t *testing.T, js jetstream.JetStream, bucket, name string, r io.Reader) *jetstream.ObjectInfo {
	t.Helper()
	info, err := natsio.PutObject(t.Context(), js, bucket, name, r)
	require.NoError(t, err)
	return info
}

func mustStream(t *testing.T, js jetstream.JetStream, name string) jetstream.Stream {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	return stream
}
