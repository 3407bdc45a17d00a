package fleet_test

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// viewer is a model that reads a picture once, and notes what images it is shown.
type viewer struct {
	asked bool
	shown []*loop.Image
}

func (v *viewer) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	v.shown = nil
	for _, message := range request.Messages {
		if message.Image != nil {
			v.shown = append(v.shown, message.Image)
		}
	}
	if v.asked {
		return loop.Reply{Text: "I see."}, nil
	}
	v.asked = true
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "a", Name: "read", Arguments: `{"path":"p.png"}`}}}, nil
}

// A picture that no message holds reaches the model, and one that resumes the session.
func TestRun_ImagesOutliveTheirCoordinator(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var small bytes.Buffer
	require.NoError(t, png.Encode(&small, image.NewGray(image.Rect(0, 0, 1, 1))))
	picture := append(small.Bytes(), bytes.Repeat([]byte{7}, render.MaxImageBytes-small.Len())...)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "p.png"), picture, 0o600))
	run := func(model *viewer) {
		runner, err := b.Runner(model, b.table, nil)
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), "s", loop.Input{Text: "What is it?"})
		require.NoError(t, err)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Len(t, model.shown, 1)
		require.Equal(t, "image/png", model.shown[0].MediaType)
		require.Equal(t, picture, model.shown[0].Data)
	}
	run(&viewer{})
	run(&viewer{asked: true})
}
