package protocol

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// awkward are values of every kind that a field has, beside the zero one.
func awkward() map[reflect.Type][]any {
	zone := time.FixedZone("", -3*3600-1800)
	return map[reflect.Type][]any{
		reflect.TypeFor[string]():  {"plain", `"`, `\`, "<", "&", ">", "\x00", "\x1f", "Grüße\u2028", "\xff", "\x7f"},
		reflect.TypeFor[int]():     {1, -7, math.MaxInt},
		reflect.TypeFor[int64]():   {int64(1), int64(math.MinInt64)},
		reflect.TypeFor[float64](): {0.1, -12.5, 1e-6, 9.9e-7, 1e20, 1e21, -1e300, math.Copysign(0, -1), math.SmallestNonzeroFloat64},
		reflect.TypeFor[bool]():    {true},
		reflect.TypeFor[time.Time](): {
			time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 1, zone), time.Date(9999, 12, 31, 23, 59, 59, 0, zone),
		},
		reflect.TypeFor[[]Use]():   {[]Use{}, []Use{{Key: "a/b", Access: Shared}, {Key: "a/<", Access: "?"}}},
		reflect.TypeFor[[]Roots](): {[]Roots{}, []Roots{{Read: []string{"", "a"}}, {Write: []string{"<"}}}},
		reflect.TypeFor[*Error]():  {&Error{}, Errorf(CodeInternal, "<%s>", "Grüße")},
		reflect.TypeFor[*Kept]():   {&Kept{}, &Kept{Lines: 3, Truncated: true}},
	}
}

// requireSameAsJSON sets each field of a body to each awkward value in turn, and compares what is
// written with what encoding/json writes.
func requireSameAsJSON[T any](t *testing.T, leftOut string, zero T, write func(*T) ([]byte, error), wire func(T) any) {
	t.Helper()
	values := awkward()
	same := func(body T) {
		want, err := json.Marshal(wire(body))
		require.NoError(t, err)
		got, err := write(&body)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
	same(zero)
	for field := range reflect.TypeFor[T]().Fields() {
		if field.Name == leftOut {
			continue
		}
		kind := field.Type
		for _, simple := range []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[int64]()} {
			if kind.Kind() == simple.Kind() {
				kind = simple // of a defined type
			}
		}
		require.NotEmpty(t, values[kind], field.Name)
		for _, value := range values[kind] {
			body := zero
			reflect.ValueOf(&body).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(value).Convert(field.Type))
			same(body)
		}
	}
}

func TestEncodeCall_WritesWhatJSONDoes(t *testing.T) {
	t.Parallel()
	payload, err := EncodePayload(CommandRun{Command: "<&> Grüße"})
	require.NoError(t, err)
	requireSameAsJSON(t, "Payload", Call{Payload: CommandRun{Command: "<&> Grüße"}}, EncodeCall, func(c Call) any {
		return wireCall{Type: typeCall, Version: Version, callFields: callFields(c), Payload: payload}
	})
}

func TestEncodeResult_WritesWhatJSONDoes(t *testing.T) {
	t.Parallel()
	value, err := EncodeValue(NoopResult{})
	require.NoError(t, err)
	requireSameAsJSON(t, "Value", Result{Value: NoopResult{}}, EncodeResult, func(r Result) any {
		return wireResult{Type: typeResult, Version: Version, resultFields: resultFields(r), Value: value}
	})
	requireSameAsJSON(t, "Value", Result{}, EncodeResult, func(r Result) any {
		return wireResult{Type: typeResult, Version: Version, resultFields: resultFields(r)}
	})
}

func TestEncode_FailsWhereJSONDoes(t *testing.T) {
	t.Parallel()
	_, err := EncodeResult(&Result{QueueMS: math.NaN()})
	require.Error(t, err)
	_, err = EncodeResult(&Result{RunMS: math.Inf(1)})
	require.Error(t, err)
	_, err = EncodeResult(&Result{FinishedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)})
	require.Error(t, err)
	_, err = EncodeCall(&Call{IssuedAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), Payload: Noop{}})
	require.Error(t, err)
}
