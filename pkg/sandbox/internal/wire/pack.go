//go:build linux

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
)

// A packed value has no names and no types: both sides are one build. Bytes and strings are
// as they are, and numbers as short as they can be.
//
//	bool      0 or 1
//	integer   varint
//	string    length, bytes
//	slice     0 for nil, or length + 1; elements, or bytes
//	pointer   0 for nil, or 1 and the value
//	struct    its fields

// Pack appends a value, which is made of those, to b. It panics for a value of another kind.
func Pack(b []byte, value any) []byte { return pack(b, reflect.ValueOf(value)) }

func pack(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Int, reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	case reflect.String:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...) //nolint:gosec // not negative
	case reflect.Slice:
		return packSlice(b, v)
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0)
		}
		return pack(append(b, 1), v.Elem())
	case reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // Fields describes each field, which takes longer than the rest
			b = pack(b, v.Field(i))
		}
		return b
	default:
		panic(fmt.Sprintf("wire: a value of type %s", v.Type()))
	}
}

func packSlice(b []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(v.Len())+1) //nolint:gosec // not negative
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return append(b, v.Bytes()...)
	}
	for i := range v.Len() {
		b = pack(b, v.Index(i))
	}
	return b
}

// Unpack parses what Pack has appended to nothing, into what value points to, the zero value. Bytes
// of it are those of b. The error wraps [ErrMalformed].
func Unpack(b []byte, value any) error {
	u := unpacker{rest: b}
	err := u.unpack(reflect.ValueOf(value).Elem())
	if err == nil && len(u.rest) > 0 {
		err = errors.New("more than a value")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// unpacker parses bytes that nobody vouches for.
type unpacker struct{ rest []byte }

var errShort = errors.New("less than a value")

func (u *unpacker) unpack(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		flag, err := u.flag()
		v.SetBool(flag)
		return err
	case reflect.Int, reflect.Int64:
		n, size := binary.Varint(u.rest)
		if size <= 0 || v.OverflowInt(n) {
			return errShort
		}
		u.rest = u.rest[size:]
		v.SetInt(n)
		return nil
	case reflect.Uint32, reflect.Uint64:
		n, size := binary.Uvarint(u.rest)
		if size <= 0 || v.OverflowUint(n) {
			return errShort
		}
		u.rest = u.rest[size:]
		v.SetUint(n)
		return nil
	case reflect.String:
		size, err := u.length(0)
		if err != nil {
			return err
		}
		v.SetString(string(u.take(size)))
		return nil
	case reflect.Slice:
		return u.unpackSlice(v)
	case reflect.Pointer:
		set, err := u.flag()
		if err != nil || !set {
			return err
		}
		v.Set(reflect.New(v.Type().Elem()))
		return u.unpack(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // Fields describes each field, which takes longer than the rest
			if err := u.unpack(v.Field(i)); err != nil {
				return err
			}
		}
		return nil
	default:
		panic(fmt.Sprintf("wire: a value of type %s", v.Type()))
	}
}

// unpackSlice grows with what is there, not with the length that is claimed: an element may take
// much more memory than its bytes.
func (u *unpacker) unpackSlice(v reflect.Value) error {
	n, err := u.length(1)
	if err != nil || n < 0 {
		return err
	}
	if v.Type().Elem().Kind() == reflect.Uint8 {
		v.SetBytes(u.take(n))
		return nil
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, min(n, 64)))
	for range n {
		element := reflect.New(v.Type().Elem()).Elem()
		if err := u.unpack(element); err != nil {
			return err
		}
		v.Set(reflect.Append(v, element))
	}
	return nil
}

func (u *unpacker) flag() (bool, error) {
	if len(u.rest) == 0 {
		return false, errShort
	}
	return u.take(1)[0] != 0, nil
}

// length reads a length, which was written with something added. There is at least a byte for
// each of what it counts.
func (u *unpacker) length(added int) (int, error) {
	n, size := binary.Uvarint(u.rest)
	if size <= 0 || n > uint64(len(u.rest)-size+added) { //nolint:gosec // not negative
		return 0, errShort
	}
	u.rest = u.rest[size:]
	return int(n) - added, nil //nolint:gosec // smaller than that
}

// take takes bytes that are there.
func (u *unpacker) take(n int) []byte {
	taken := u.rest[:n:n]
	u.rest = u.rest[n:]
	return taken
}
