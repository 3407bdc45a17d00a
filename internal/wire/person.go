package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// AskWait is how long a [protocol.Question] waits to be taken on by somebody.
const AskWait = 2 * time.Second

// AnswerTaken is the reply to an [protocol.Answer] that counts; any other says why it does not.
const AnswerTaken = "taken"

// MaxQuestion bounds the body of a [protocol.Question], in bytes.
const MaxQuestion = 64 << 10

const (
	typeQuestion = "question"
	typeAnswer   = "answer"
)

// EncodeQuestion returns the JSON body of a question.
func EncodeQuestion(q protocol.Question) ([]byte, error) { return encode(typeQuestion, q) }

// DecodeQuestion reads what [EncodeQuestion] wrote. Errors wrap [ErrInvalidQuestion].
func DecodeQuestion(body []byte) (protocol.Question, error) {
	q, err := decode[protocol.Question](body, typeQuestion, ErrInvalidQuestion)
	if err == nil && q.ID == "" {
		err = fmt.Errorf("%w: id is missing", ErrInvalidQuestion)
	}
	return q, err
}

// EncodeAnswer returns the JSON body of an answer.
func EncodeAnswer(a protocol.Answer) ([]byte, error) { return encode(typeAnswer, a) }

// DecodeAnswer reads what [EncodeAnswer] wrote. Errors wrap [ErrInvalidAnswer].
func DecodeAnswer(body []byte) (protocol.Answer, error) {
	a, err := decode[protocol.Answer](body, typeAnswer, ErrInvalidAnswer)
	if err != nil {
		return a, err
	}
	switch a.Action {
	case protocol.ActionWait, protocol.ActionAccept, protocol.ActionDecline, protocol.ActionCancel:
		return a, nil
	default:
		return a, fmt.Errorf("%w: action %q: must be %s, %s, %s or %s", ErrInvalidAnswer, a.Action, protocol.ActionWait, protocol.ActionAccept, protocol.ActionDecline, protocol.ActionCancel)
	}
}

// ReadAnswer decodes an answer to a question, and judges it: fits is asked about one that is
// accepted. The error, which wraps [ErrInvalidAnswer] for a message that is no answer, says why it
// does not count; its text is the reply to the sender. The reply to any other is [AnswerTaken].
func ReadAnswer(body []byte, question string, fits func(protocol.Answer) error) (protocol.Answer, error) {
	answer, err := DecodeAnswer(body)
	switch {
	case err != nil:
	case answer.Question != "" && answer.Question != question:
		err = errors.New("it is about another question, which is not put any more")
	case answer.Action == protocol.ActionAccept:
		err = fits(answer)
	}
	return answer, err
}

var (
	// ErrInvalidQuestion is wrapped by every error of [DecodeQuestion].
	ErrInvalidQuestion = errors.New("invalid question")
	// ErrInvalidAnswer is wrapped by every error of [DecodeAnswer].
	ErrInvalidAnswer = errors.New("invalid answer")
)

// ErrInvalidApproval is wrapped by every error of [DecodeApproval].
var ErrInvalidApproval = errors.New("invalid approval")

const typeApproval = "approval"

// EncodeApproval returns the JSON body of an approval.
func EncodeApproval(a protocol.Approval) ([]byte, error) {
	return encode(typeApproval, a)
}

// DecodeApproval reads what [EncodeApproval] wrote. Errors wrap [ErrInvalidApproval].
func DecodeApproval(body []byte) (protocol.Approval, error) {
	return decode[protocol.Approval](body, typeApproval, ErrInvalidApproval)
}
