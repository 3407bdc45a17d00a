// Package scripted is a model that replies from a script: real sessions with real tools, and no
// model provider.
//
// A script is a JSON file:
//
//	{
//	  "delay_ms": 20,
//	  "steps": [
//	    {"text": "Let me look.", "tool_calls": [
//	      {"id": "c1", "name": "bash", "arguments": {"command": "ls"}},
//	      {"id": "c2", "name": "read", "arguments_raw": "{"}
//	    ]},
//	    {"reasoning": "It worked.", "text": "Done.", "usage": {"input_tokens": 12, "output_tokens": 3}}
//	  ]
//	}
//
// A step needs text or tool_calls. delay_ms is the time before each word of the text, of all steps
// or of one: 0 to 60000, default 0. usage is what the reply is said to take; default none.
// reasoning is what the model thinks before, and "finish": "length" cuts the reply off at a limit
// of output tokens. arguments_raw sends a string as it is, arguments an object; without both it is
// {}. In either {{ID PATTERN}} becomes what the regular expression finds in the last result of the
// tool call with this id, as the handle that a process has got: "{{c1 p-[0-9a-f]+}}". delay_ms of a
// tool call is the time before it; the calls of such a step are passed on one by one, as those of a
// reply that streams.
//
// The model keeps no state. Which step it replies with follows from the conversation alone: as many
// assistant messages as it holds, so many steps are over. A resumed session therefore goes on where
// it was, several sessions may share one model, and a second turn goes on behind the last step of
// the first. A conversation that is longer than the script is an [EndError].
//
// Whatever is wrong with a script is found when it is read, all errors at once.
package scripted
