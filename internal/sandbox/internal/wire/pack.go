//go:build linux

package wire

import (
	"fmt"
	"sync"

	"github.com/fxamacker/cbor/v2"
)

// maxElements bounds a list: one that is claimed takes memory before it is read.
const maxElements = 1 << 20

// unpacking is how values are read: names of files need not be UTF-8.
var unpacking = sync.OnceValues(cbor.DecOptions{ //nolint:gochecknoglobals // a constant
	UTF8: cbor.UTF8DecodeInvalid, MaxArrayElements: maxElements, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
	IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
}.DecMode)

// Pack returns a value in CBOR. It panics for a value that has no such form.
func Pack(value any) []byte {
	packed, err := cbor.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("wire: %v", err))
	}
	return packed
}

// Unpack parses what Pack has returned into what value points to, the zero value. The
// error wraps [ErrMalformed].
func Unpack(b []byte, value any) error {
	mode, err := unpacking()
	if err == nil {
		err = mode.Unmarshal(b, value)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
