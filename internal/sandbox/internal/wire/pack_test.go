//go:build linux

package wire_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fill sets every field of a value to something of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(*n%2 == 1)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n * 1000 * (1 - *n%2*2)))
	case reflect.String:
		v.SetString("\xff\x00 " + string(rune('a'+*n%26)))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), *n%3, *n%3))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	default:
	}
}

func roundTrip[T any](t *testing.T, value T) {
	t.Helper()
	var got T
	require.NoError(t, wire.Unpack(wire.Pack(value), &got))
	require.Equal(t, value, got)
}

func TestPack_EveryRequestAndReplyComesBack(t *testing.T) {
	t.Parallel()
	for n := range 7 { // of different lengths
		var request sandbox.FileRequest
		fill(reflect.ValueOf(&request).Elem(), new(n))
		roundTrip(t, request)
		var reply sandbox.FileReply
		fill(reflect.ValueOf(&reply).Elem(), new(n))
		roundTrip(t, reply)
	}
	roundTrip(t, sandbox.FileRequest{})
	roundTrip(t, sandbox.FileReply{List: &sandbox.ListResult{Entries: []sandbox.Entry{}}})
	roundTrip(t, sandbox.FileReply{Read: &sandbox.ReadResult{Content: make([]byte, 100_000)}})
}

func TestUnpack_RefusesWhatIsNoValue(t *testing.T) {
	t.Parallel()
	packed := wire.Pack(sandbox.FileRequest{Write: &sandbox.WriteRequest{Path: "name", Content: []byte("text")}})
	for n := range packed {
		require.ErrorIs(t, wire.Unpack(packed[:n], &sandbox.FileRequest{}), wire.ErrMalformed, n)
	}
	require.ErrorIs(t, wire.Unpack(append(packed, 0), &sandbox.FileRequest{}), wire.ErrMalformed)
	require.Panics(t, func() { wire.Pack(func() {}) })
}

// What comes out of a sandbox may be anything. It takes memory for what is there, not for what it
// says.
func FuzzUnpack(f *testing.F) {
	f.Add(wire.Pack(sandbox.FileReply{}))
	f.Add(wire.Pack(sandbox.FileReply{Glob: &sandbox.GlobResult{Paths: []string{"a", "b"}}}))
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var reply sandbox.FileReply
		if wire.Unpack(b, &reply) != nil {
			return
		}
		roundTrip(t, reply)
	})
}
