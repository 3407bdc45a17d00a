package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// AskWait is how long a [Question] waits to be taken on by somebody.
const AskWait = 2 * time.Second

// AnswerTaken is the reply to an [Answer] that counts; any other says why it does not.
const AnswerTaken = "taken"

// MaxQuestion bounds the body of a [Question], in bytes.
const MaxQuestion = 64 << 10

// Question is what a running call wants to know of a person: a form. It is told on
// [Fleet.QuestionSubject], and whoever follows the call may put it to somebody.
type Question struct {
	// ID is that of this question among those of its call.
	ID string `json:"id"`
	// Message is what is asked, by the tool, not by the fleet.
	Message string `json:"message"`
	// Schema is the JSON Schema of the answer's content, an object with plain properties; nil when
	// only yes or no is asked.
	Schema json.RawMessage `json:"schema,omitempty"`
}

// Action is what a person did about a question.
type Action string

// The actions. A question for which no [ActionWait] comes within [AskWait] is declined.
const (
	ActionWait    Action = "wait"    // somebody is being asked: the answer is to come
	ActionAccept  Action = "accept"  // it is answered
	ActionDecline Action = "decline" // it is not
	ActionCancel  Action = "cancel"  // nobody decided
)

// Answer answers a [Question]. It is a request on [Fleet.AnswerSubject], which the worker confirms;
// one that does not fit the question's schema is refused, and the question stays.
type Answer struct {
	// Question is its ID; "" is the one that is put.
	Question string `json:"question,omitempty"`
	Action   Action `json:"action"`
	// Content is, of accept, a JSON object; what it lacks is the default of the schema.
	Content json.RawMessage `json:"content,omitempty"`
	// By says who answers; it may be empty.
	By string `json:"by,omitempty"`
}

var (
	// ErrInvalidQuestion is wrapped by every error of [DecodeQuestion].
	ErrInvalidQuestion = errors.New("invalid question")
	// ErrInvalidAnswer is wrapped by every error of [DecodeAnswer].
	ErrInvalidAnswer = errors.New("invalid answer")
)

const (
	typeQuestion = "question"
	typeAnswer   = "answer"
)

// EncodeQuestion returns the JSON body of a question.
func EncodeQuestion(q Question) ([]byte, error) { return encode(typeQuestion, q) }

// DecodeQuestion reads what [EncodeQuestion] wrote. Errors wrap [ErrInvalidQuestion].
func DecodeQuestion(body []byte) (Question, error) {
	q, err := decode[Question](body, typeQuestion, ErrInvalidQuestion)
	if err == nil && q.ID == "" {
		err = fmt.Errorf("%w: id is missing", ErrInvalidQuestion)
	}
	return q, err
}

// EncodeAnswer returns the JSON body of an answer.
func EncodeAnswer(a Answer) ([]byte, error) { return encode(typeAnswer, a) }

// DecodeAnswer reads what [EncodeAnswer] wrote. Errors wrap [ErrInvalidAnswer].
func DecodeAnswer(body []byte) (Answer, error) {
	a, err := decode[Answer](body, typeAnswer, ErrInvalidAnswer)
	if err != nil {
		return a, err
	}
	switch a.Action {
	case ActionWait, ActionAccept, ActionDecline, ActionCancel:
		return a, nil
	default:
		return a, fmt.Errorf("%w: action %q: must be %s, %s, %s or %s", ErrInvalidAnswer, a.Action, ActionWait, ActionAccept, ActionDecline, ActionCancel)
	}
}
