package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// replayFlag is about --model replay:FILE.
type replayFlag struct {
	LiveTools bool `group:"Tools:" help:"With --model replay:FILE, run the tool calls, except those of the tool agent. Default: use their recorded results."`
}

// replays reports whether a model is a recording.
func replays(spec string) bool { return strings.HasPrefix(strings.TrimSpace(spec), "replay:") }

// playBack runs all turns of a recording, and compares the transcripts.
func playBack(ctx context.Context, s *started) (result loop.TurnResult, err error) {
	for _, input := range s.options.Replay.Inputs() {
		if result, err = s.turn(ctx, input); err != nil || ctx.Err() != nil {
			return result, err
		}
	}
	history, err := s.env.Client.Sessions("").Log(ctx, s.session)
	if err != nil {
		return result, err
	}
	var recorded, now bytes.Buffer
	if err := errors.Join(s.options.Replay.Transcript(&recorded), history.Transcript(&now)); err != nil {
		return result, err
	}
	if at := firstDifference(recorded.String(), now.String()); at != "" {
		s.show.warn(at)
		return result, errors.New("the transcript differs from that of the recording")
	}
	return result, nil
}

// maxDifference bounds the lines that are shown, in characters.
const maxDifference = 500

// firstDifference describes the first line in which transcripts differ; "" when they do not.
func firstDifference(recorded, now string) string {
	if recorded == now {
		return ""
	}
	a, b := strings.Split(recorded, "\n"), strings.Split(now, "\n")
	n := 0
	for n < min(len(a), len(b))-1 && a[n] == b[n] {
		n++
	}
	return fmt.Sprintf("line %d of the transcript (session export --transcript) differs\nrecorded: %s\nnow:      %s",
		n+1, prose.Short(a[n], maxDifference), prose.Short(b[n], maxDifference))
}
