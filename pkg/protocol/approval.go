package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Approval is a person's answer to the question whether a call may be made. It is a
// request on [Fleet.ApprovalSubject], which the coordinator that waits for it confirms.
type Approval struct {
	Granted bool `json:"granted"`
	// By says who answers, and Note is told to the model; both may be empty.
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
}

// ErrInvalidApproval is wrapped by every error of [DecodeApproval].
var ErrInvalidApproval = errors.New("invalid approval")

type approvalFields Approval // without methods

type wireApproval struct {
	Type    string `json:"type"`
	Version int    `json:"version"`
	approvalFields
}

const typeApproval = "approval"

// EncodeApproval returns the JSON body of an approval.
func EncodeApproval(a Approval) ([]byte, error) {
	return json.Marshal(wireApproval{Type: typeApproval, Version: Version, approvalFields: approvalFields(a)})
}

// DecodeApproval reads what [EncodeApproval] wrote. Errors wrap [ErrInvalidApproval].
func DecodeApproval(body []byte) (Approval, error) {
	var wire wireApproval
	if err := unmarshal(body, &wire); err != nil {
		return Approval{}, fmt.Errorf("%w: %w", ErrInvalidApproval, err)
	}
	if wire.Type != typeApproval {
		return Approval{}, fmt.Errorf("%w: type %q, want %q", ErrInvalidApproval, wire.Type, typeApproval)
	}
	return Approval(wire.approvalFields), nil
}
