package modeltest

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Servers say in many ways that an account has nothing left to pay with; a limit of a minute is
// another thing.
func usedUp(t *testing.T, d *Dialect) {
	t.Helper()
	for name, test := range map[string]struct {
		code int
		body string
		want string
	}{
		"Anthropic":        {400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}`, endpoint.TypeQuotaExceeded},
		"Anthropic, limit": {400, `{"error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}`, endpoint.TypeQuotaExceeded},
		"DeepSeek":         {402, `{"error":{"message":"Insufficient Balance","type":"unknown_error"}}`, endpoint.TypeQuotaExceeded},
		"OpenRouter":       {402, `{"error":{"message":"Prompt tokens limit exceeded: 9000 > 2000. This request requires more credits","code":402}}`, endpoint.TypeQuotaExceeded},
		"OpenRouter, key":  {403, `{"error":{"message":"Key limit exceeded (total limit)","code":403}}`, endpoint.TypeQuotaExceeded},
		"without a word":   {402, "", endpoint.TypeQuotaExceeded},
		"xAI":              {403, `{"code":"The caller does not have permission","error":"Your newly created team doesn't have any credits yet."}`, endpoint.TypeQuotaExceeded},
		"Google":           {403, `{"error":{"code":403,"message":"The project is not set up.","status":"PERMISSION_DENIED","details":[{"@type":"x/ErrorInfo","reason":"BILLING_DISABLED"}]}}`, endpoint.TypeQuotaExceeded},
		"Google, in words": {403, `{"error":{"code":403,"message":"This API method requires billing to be enabled.","status":"PERMISSION_DENIED"}}`, endpoint.TypeQuotaExceeded},
		"Moonshot":         {429, `{"error":{"message":"Your account is suspended due to insufficient balance","type":"exceeded_current_quota_error"}}`, endpoint.TypeQuotaExceeded},
		"Fireworks":        {412, `{"error":"Account suspended, possibly due to reaching the monthly spending limit"}`, endpoint.TypeQuotaExceeded},
		"Qwen":             {400, `{"error":{"code":"Arrearage","message":"Access denied."}}`, endpoint.TypeQuotaExceeded},
		"a minute's quota": {429, `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}`, endpoint.TypeRateLimited},
		"an hour's limit":  {429, `{"error":"you have reached your hourly usage limit"}`, endpoint.TypeRateLimited},
		"no right":         {403, `{"error":{"message":"Your key has no right to use this model"}}`, endpoint.TypePermission},
		"a bad parameter":  {400, `{"error":{"message":"billing_metadata: unknown field"}}`, endpoint.TypeInvalidRequest},
	} {
		_, err := Serve(t, d, Status(test.code, test.body)).Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 }).Reply(t.Context(), Hello(), Ignore)
		RequireType(t, test.want, err)
		var failure *endpoint.Error
		require.ErrorAs(t, err, &failure)
		down := test.want == endpoint.TypeQuotaExceeded || test.want == endpoint.TypeRateLimited
		require.Equal(t, down, failure.Down(), name)
	}
}

// A tool is left out only for an error about its declaration, and in the session that had the
// error.
func rejectedTools(t *testing.T, d *Dialect) {
	t.Helper()
	asked := Hello()
	asked.Session = "one"
	asked.Tools = []tools.Definition{{Name: "bash"}, {Name: "read"}}
	ok := Stream(d.Stream(d.Text("ok"))...)
	for _, message := range []string{
		"Invalid arguments for tool bash", "the call of function 'bash' is too long", "tool bash: the documentation has the schema", "too many tools (1)",
	} {
		s := Serve(t, d, Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`), ok)
		m := s.Model(t)
		_, err := m.Reply(t.Context(), asked, Ignore)
		RequireType(t, endpoint.TypeInvalidRequest, err)
		_, err = m.Reply(t.Context(), asked, Ignore)
		require.NoError(t, err)
		require.Contains(t, encoded(t, s.Asked()[1]), `"bash"`, message)
	}
	for _, message := range []string{"Invalid schema for function 'bash': x", "Tool 'bash' is not supported with this model", "m-1 does not support tool types: bash"} {
		s := Serve(t, d, Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`), ok)
		m := s.Model(t)
		for range 2 {
			_, err := m.Reply(t.Context(), asked, Ignore)
			require.NoError(t, err)
		}
		other := asked
		other.Session = "two"
		_, err := m.Reply(t.Context(), other, Ignore)
		require.NoError(t, err)
		require.Len(t, s.Asked(), 4)
		for i, has := range []bool{true, false, false, true} {
			require.Equal(t, has, strings.Contains(encoded(t, s.Asked()[i]), `"name":"bash"`), "request %d of %s", i, message)
		}
	}
}

// An image is left out only for an error about images.
func aboutImages(t *testing.T, d *Dialect) {
	t.Helper()
	if d.Attached == nil {
		return
	}
	asked := Hello()
	asked.Messages[0].Attachments = []loop.Attachment{{ID: "a0", Name: "a.png", Image: loop.Image{MediaType: "image/png", Data: []byte("x")}}}
	for _, test := range []struct {
		code    int
		error   string
		refused bool
	}{
		{400, `"message":"Provisioned throughput is required for this model"`, false},
		{400, `"message":"Unknown parameter. See the documentation"`, false},
		{400, `"message":"This revision is not valid"`, false},
		{400, `"message":"Invalid JSON document"`, false},
		{400, `"message":"Image generation is not supported by this model"`, false},
		{500, `"message":"failed to pull container image: not found"`, false},
		{500, `"message":"the vision team was notified"`, false},
		{404, `"message":"The model m-1 was not found. See the multimodal guide"`, false},
		{400, `"message":"bad request","code":"image_parse_error"`, true},
		{400, `"message":"bad request","param":"content.image_url"`, true},
		{400, `"message":"Could not process image"`, true},
		{400, `"message":"Unable to process input image. Please retry."`, true},
		{400, `"message":"The document has no pages."`, true},
		{400, `"message":"This model does not support images"`, true},
		{500, `"message":"image input is not supported - hint: you may need to provide the mmproj"`, true},
		{404, `"message":"No endpoints found that support image input"`, true},
	} {
		_, err := Serve(t, d, Status(test.code, `{"error":{`+test.error+`}}`)).Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 }).Reply(t.Context(), asked, Ignore)
		var refused *loop.RefusedError
		require.Equal(t, test.refused, errors.As(err, &refused), test.error)
	}
}
