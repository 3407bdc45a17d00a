package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Remove deletes messages of the calls stream, and returns when the deletions are
// applied. A message that is gone already is fine.
func (s *Store) Remove(ctx context.Context, seqs ...uint64) error {
	for _, seq := range seqs {
		if err := s.removeFrom(ctx, s.Fleet.CallsStream(), seq); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) removeFrom(ctx context.Context, stream string, seq uint64) error {
	answer, err := s.Request(ctx, ShortTimeout, deletion(stream, seq))
	if err == nil {
		err = deleteFault(answer.Data)
	}
	if err != nil {
		return fmt.Errorf("remove message %d of stream %s: %w", seq, stream, err)
	}
	return nil
}

// ThrowAway removes a message of the calls stream, at some time: nobody answers, and nothing
// happens without a connection.
func (s *Store) ThrowAway(seq uint64) { _ = s.NC.PublishMsg(deletion(s.Fleet.CallsStream(), seq)) }

// deletion asks for a message to be deleted. Erasing its bytes is slow, and nobody needs it.
func deletion(stream string, seq uint64) *nats.Msg {
	return &nats.Msg{
		Subject: "$JS.API.STREAM.MSG.DELETE." + stream,
		Data:    append(strconv.AppendUint([]byte(`{"no_erase":true,"seq":`), seq, 10), '}'),
	}
}

// deleteFault reads the answer to a deletion; a message that was gone already is no fault.
func deleteFault(body []byte) error {
	var answer struct {
		Success bool                `json:"success"`
		Error   *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	switch api := answer.Error; {
	case answer.Success:
		return nil
	case api == nil:
		return errNotDeleted
	case api.ErrorCode == codeSeqNotFound, api.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil
	case api.ErrorCode == codeDeleteFailed &&
		slices.ContainsFunc([]string{"no message found", "deleted message", "EOF"}, // the last: it is behind the stream's end
			func(why string) bool { return strings.Contains(api.Description, why) }):
		return nil
	default:
		return api
	}
}

var errNotDeleted = errors.New("not deleted, and the server does not say why")
