package wire_test

import (
	"fmt"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a worker does with a body: a kind that it does not know is a payload, too, and answered
// as rejected.
func ExampleDecodeCall() {
	body := []byte(`{"type":"call","version":1,"id":"c1","session_id":"demo","pool":"default",
		"resources":[{"key":"account/acme","access":"exclusive"}],"delivery":"idempotent",
		"issued_at":"2025-01-02T03:04:05Z","payload":{"type":"refund","version":1,"arguments":{"cents":500}}}`)
	call, err := wire.DecodeCall(body)
	if err != nil {
		fmt.Println(err)
		return
	}
	refund, isOurs := call.Payload.(protocol.UnknownPayload)
	arguments, err := refund.Arguments()
	fmt.Println(isOurs, wire.KindOf(refund), string(arguments), err)

	result := wire.NewResult(call, protocol.StatusRejected, protocol.Errorf(codes.UnknownPayload, "no handler for %s", wire.KindOf(refund)))
	encoded, err := wire.EncodeResult(&result)
	fmt.Println(string(encoded), err)
	// Output:
	// true refund {"cents":500} <nil>
	// {"type":"result","version":1,"call_id":"c1","session_id":"demo","status":"rejected","error":{"code":"unknown_payload","message":"no handler for refund"},"queue_ms":0,"lane_ms":0,"run_ms":0,"finished_at":"0001-01-01T00:00:00Z"} <nil>
}
