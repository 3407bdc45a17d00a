package loop_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// The JSON of an event is what scripts read and what journals store: names, and their order, stay.
func TestEvent_JSONStaysAsItIs(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/event.json")
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(golden))
	decoder.DisallowUnknownFields()
	var event loop.Event
	require.NoError(t, decoder.Decode(&event))
	for _, field := range reflect.VisibleFields(reflect.TypeFor[loop.Event]()) {
		require.False(t, reflect.ValueOf(event).FieldByIndex(field.Index).IsZero(), "the golden file has no %s", field.Name)
	}

	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(event))
	require.Equal(t, string(golden), encoded.String())
}
