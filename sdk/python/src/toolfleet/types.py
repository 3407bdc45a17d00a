"""Types and operations of the HTTP API. Made by scripts/generate.py from docs/openapi.json."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Dict, Literal, Tuple, TypedDict

__all__ = [
    "AddTemplateRequest",
    "AddedWebhook",
    "AnswerQuestionRequest",
    "ApproveCallRequest",
    "AskedQuestion",
    "Attachment",
    "BatchedCall",
    "Binding",
    "Call",
    "CallList",
    "CallLog",
    "CallRate",
    "CallRates",
    "CallRef",
    "CallRequest",
    "CallResult",
    "CallStart",
    "CallState",
    "CallWaits",
    "Cancelled",
    "Change",
    "ChangeList",
    "ChannelPosition",
    "Compacted",
    "Diff",
    "Effect",
    "EffectList",
    "Error",
    "ErrorDetail",
    "Event",
    "EventAttachment",
    "EventEffect",
    "FailedDelivery",
    "FailedList",
    "File",
    "FileList",
    "ForkSessionRequest",
    "Forked",
    "Found",
    "Giver",
    "HookNote",
    "Image",
    "InstructionFile",
    "Kept",
    "KilledList",
    "Lane",
    "LaneCalls",
    "LaneList",
    "Limit",
    "LimitList",
    "Limits",
    "LoggedCall",
    "Lost",
    "MadeToken",
    "MergeSessionRequest",
    "Merged",
    "Need",
    "NewSchedule",
    "NewSession",
    "NewToken",
    "OutputPiece",
    "Parent",
    "Part",
    "Passage",
    "Paused",
    "Place",
    "PoolList",
    "Problem",
    "Question",
    "QuestionList",
    "Reasoning",
    "Removed",
    "ResolveCallRequest",
    "RestoreSessionRequest",
    "Restored",
    "ResumedWebhook",
    "Retry",
    "RevertCall",
    "Roots",
    "RunningCall",
    "Schedule",
    "ScheduleList",
    "ScratchChange",
    "SendCallsRequest",
    "SentCall",
    "Session",
    "SessionList",
    "Span",
    "Spending",
    "Start",
    "Template",
    "TemplateList",
    "Terms",
    "Token",
    "TokenList",
    "ToolCall",
    "ToolInfo",
    "ToolList",
    "Total",
    "Trace",
    "Try",
    "Turn",
    "TurnRequest",
    "UnfinishedList",
    "Unknown",
    "Usage",
    "Use",
    "Wait",
    "Waits",
    "Webhook",
    "WebhookList",
    "WebhookRequest",
    "WebhookTest",
    "Woken",
    "Worker",
    "WorkerList",
]


class AddTemplateRequest(TypedDict):
    name: str
    session_id: str


class _AddedWebhook(TypedDict):
    created: str
    failed: int
    secret: str
    """Secret that signs what is sent. It is never shown again."""
    url: str
    waiting: int
    webhook_id: str


class AddedWebhook(_AddedWebhook, total=False):
    delivered_at: str
    events: list[str]
    last_error: str
    last_error_at: str
    paused: str
    session_id: str
    tenant: str


class _AnswerQuestionRequest(TypedDict):
    action: Literal['accept', 'decline', 'cancel']
    call_id: str


class AnswerQuestionRequest(_AnswerQuestionRequest, total=False):
    content: Any
    """Answer, as the question's schema says."""
    question: str
    """Id of the question. Default: the one that is asked."""


class _ApproveCallRequest(TypedDict):
    call_id: str
    granted: bool


class ApproveCallRequest(_ApproveCallRequest, total=False):
    note: str
    """Text for the model."""


class _AskedQuestion(TypedDict):
    id: str
    message: str


class AskedQuestion(_AskedQuestion, total=False):
    schema: Any


class Attachment(TypedDict):
    data: str
    """Content, in base64."""
    name: str
    """File name."""


class BatchedCall(TypedDict, total=False):
    after: list[CallRef]
    """Calls that must have ended with status ok before."""
    arguments: Any
    """Arguments of the tool: a JSON object. Default: {}."""
    call_id: str
    """Your own id of the call. Default: a new one."""
    deadline: str | datetime
    """Time at which the call ends at the latest."""
    delivery: Literal['rollback', 'idempotent', 'at_most_once']
    """What may happen after a lost worker."""
    handler: str
    """Kind of a handler of Go workers, which runs instead of a tool."""
    input: Any
    """What the handler gets: any JSON value."""
    min_level: Literal['none', 'paths', 'full', 'kernel']
    """Minimum sandbox level."""
    not_before: str | datetime
    """Time before which the call does not start."""
    pool: str
    """Pool of workers."""
    priority: Literal['interactive', 'normal', 'batch']
    """Order among the calls of the tenant."""
    queue_timeout_ms: int
    """Bound of the time from acceptance to the first start."""
    resources: list[Use]
    """What the call uses. Calls whose resources conflict run one after another. Default: what the tool declares."""
    retry: Retry
    """When a failed call starts again; needs the delivery idempotent."""
    sandbox: str
    """Sandbox in which the call runs. Default: that of the session."""
    session_id: str
    """Session that owns the call and its result. Default: that of the sandbox, else one for all such calls of the tenant to this server."""
    tenant: str
    """Tenant. Default: that of the token."""
    timeout_ms: int
    """Bound of one attempt."""
    tool: str
    """Name of a tool. One of tool and handler is required."""


class Binding(TypedDict, total=False):
    by: str
    delivery: str
    min_level: str
    roots: list[Roots]
    tenant: str


class _Call(TypedDict):
    accepted_at: str
    age_ms: int
    attempt: int
    call_id: str
    delivery: str
    resources: list[Use]
    session_id: str
    starts: list[Start]
    state: str
    tool: str


class Call(_Call, total=False):
    fault: str
    needs: Need
    not_before: str
    owner: str
    running_ms: int
    tenant: str
    wait: Wait
    waits_for: str


class CallList(TypedDict):
    calls: list[SentCall]


class _CallLog(TypedDict):
    calls: list[LoggedCall]
    position: str


class CallLog(_CallLog, total=False):
    behind: bool
    next: str
    since: str


class CallRate(TypedDict):
    at: str
    calls: int
    failed: int
    run_p50_ms: float
    run_p95_ms: float
    wait_p50_ms: float
    wait_p95_ms: float
    waits: CallWaits


class _CallRates(TypedDict):
    buckets: list[CallRate]
    step_ms: int


class CallRates(_CallRates, total=False):
    behind: bool
    since: str


class CallRef(TypedDict):
    call_id: str
    session_id: str


class CallRequest(TypedDict, total=False):
    after: list[CallRef]
    """Calls that must have ended with status ok before."""
    arguments: Any
    """Arguments of the tool: a JSON object. Default: {}."""
    deadline: str | datetime
    """Time at which the call ends at the latest."""
    delivery: Literal['rollback', 'idempotent', 'at_most_once']
    """What may happen after a lost worker."""
    handler: str
    """Kind of a handler of Go workers, which runs instead of a tool."""
    input: Any
    """What the handler gets: any JSON value."""
    min_level: Literal['none', 'paths', 'full', 'kernel']
    """Minimum sandbox level."""
    not_before: str | datetime
    """Time before which the call does not start."""
    pool: str
    """Pool of workers."""
    priority: Literal['interactive', 'normal', 'batch']
    """Order among the calls of the tenant."""
    queue_timeout_ms: int
    """Bound of the time from acceptance to the first start."""
    resources: list[Use]
    """What the call uses. Calls whose resources conflict run one after another. Default: what the tool declares."""
    retry: Retry
    """When a failed call starts again; needs the delivery idempotent."""
    sandbox: str
    """Sandbox in which the call runs. Default: that of the session."""
    session_id: str
    """Session that owns the call and its result. Default: that of the sandbox, else one for all such calls of the tenant to this server."""
    tenant: str
    """Tenant. Default: that of the token."""
    timeout_ms: int
    """Bound of one attempt."""
    tool: str
    """Name of a tool. One of tool and handler is required."""


class _CallResult(TypedDict):
    call_id: str
    finished_at: str
    lane_ms: float
    queue_ms: float
    run_ms: float
    session_id: str
    status: str
    text: str
    """What a model would read."""


class CallResult(_CallResult, total=False):
    attempt: int
    checkpoint: int
    digest: str
    epoch: int
    error: Error
    kept: Kept
    level: str
    network: str
    sandbox_ms: float
    sequence: int
    store_ms: float
    tool: str
    tries: list[Try]
    value: Any
    """Typed output; also of a call that failed, as far as it came."""
    waits: Waits
    worker_id: str


class CallStart(TypedDict):
    after_ms: float
    attempt: int
    worker_id: str


class _CallState(TypedDict):
    call_id: str
    session_id: str
    state: Literal['accepted', 'ended']
    """accepted: it waits or runs. ended: result is set."""


class CallState(_CallState, total=False):
    result: CallResult


class _CallWaits(TypedDict):
    queue_ms: float


class CallWaits(_CallWaits, total=False):
    after_call: str
    after_ms: float
    after_session: str
    held_by: str
    held_by_session: str
    lane_ms: float
    limit: str
    limit_ms: float
    lost_ms: float
    lost_worker: str
    model_ms: float
    not_before_ms: float
    pause_ms: float
    person_ms: float
    rate_ms: float
    slot_ms: float


class Cancelled(TypedDict):
    calls: list[str]


class Change(TypedDict):
    calls: list[str]
    paths: list[str]
    removed: int
    set: int
    time: str


class ChangeList(TypedDict):
    changes: list[Change]


class ChannelPosition(TypedDict):
    channel: str
    sequence: int


class Compacted(TypedDict):
    compacted: bool


class Diff(TypedDict):
    diff: str


class _Effect(TypedDict):
    call_id: str
    status: str
    tool: str


class Effect(_Effect, total=False):
    reaches: list[str]
    revert: str
    reverted: bool


class EffectList(TypedDict):
    effects: list[Effect]


class _Error(TypedDict):
    code: str
    message: str


class Error(_Error, total=False):
    retry_after_ms: int


class ErrorDetail(TypedDict, total=False):
    location: str
    """Where the error occurred, e.g. 'body.items[3].tags' or 'path.thing-id'"""
    message: str
    """Error message text"""
    value: Any
    """The value at the given location"""


_EventA = TypedDict("_EventA", {'session_id': "str", 'time': "str", 'type': "str"}, total=True)
_EventB = TypedDict("_EventB", {'about': "str", 'answer': "Any", 'answer_schema': "Any", 'arguments': "str", 'attachments': "list[EventAttachment]", 'attempt': "int", 'bound': "Binding", 'by': "str", 'call': "Any", 'call_id': "str", 'checkpoint': "int", 'content': "str", 'cost_usd': "float", 'diff': "str", 'effect': "EventEffect", 'elapsed_ms': "int", 'ending': "str", 'error': "Error", 'exit': "str", 'finish': "str", 'from': "str", 'full': "str", 'giver': "Giver", 'handle': "str", 'hook': "HookNote", 'image': "Image", 'index': "int", 'input': "str", 'instructions': "list[str]", 'interface': "str", 'job': "str", 'kept_step': "int", 'kept_turn': "int", 'lane': "str", 'level': "str", 'model': "str", 'name': "str", 'note': "str", 'parent': "Parent", 'part': "str", 'question': "AskedQuestion", 'queue_ms': "float", 'read': "ChannelPosition", 'reasoning': "Reasoning", 'request_ms': "float", 'reverts': "str", 'rule': "str", 'run_ms': "float", 'sandbox_ms': "float", 'scope': "str", 'scratch': "ScratchChange", 'seed': "str", 'send_ms': "float", 'source': "str", 'span_id': "str", 'spent': "Spending", 'starts': "list[CallStart]", 'status': "str", 'step': "int", 'store_ms': "float", 'tenant': "str", 'terms': "Terms", 'text': "str", 'told': "bool", 'tool_call_id': "str", 'tool_calls': "list[ToolCall]", 'tools': "list[str]", 'trace_id': "str", 'tries': "list[Try]", 'trigger': "str", 'turn': "int", 'usage': "Usage", 'via': "str", 'wait_for': "str", 'wait_ms': "float", 'waits': "Waits", 'worker_id': "str", 'workspace': "str"}, total=False)


class Event(_EventA, _EventB):
    pass


class _EventAttachment(TypedDict):
    media_type: str
    name: str


class EventAttachment(_EventAttachment, total=False):
    blob: str
    data: str
    id: str


class EventEffect(TypedDict, total=False):
    reaches: list[str]
    revert: RevertCall


class FailedDelivery(TypedDict):
    at: str
    attempts: int
    error: str
    event_id: str
    type: str


class FailedList(TypedDict):
    failed: list[FailedDelivery]


class _File(TypedDict):
    mode: str
    path: str
    size: int
    type: str


class File(_File, total=False):
    change: str
    target: str


class FileList(TypedDict):
    files: list[File]


class _ForkSessionRequest(TypedDict):
    session_id: str
    """Id of the fork."""


class ForkSessionRequest(_ForkSessionRequest, total=False):
    call_id: str
    """Call after which it is."""
    turn: int
    """Turn at whose end it is."""


class Forked(TypedDict):
    session_id: str
    turns: int


class _Found(TypedDict):
    passages: list[Passage]


class Found(_Found, total=False):
    more: bool
    since: str


class Giver(TypedDict, total=False):
    token: str
    until: str


class _HookNote(TypedDict):
    event: str


class HookNote(_HookNote, total=False):
    context: str
    decision: str
    failed: bool
    input: Any
    reason: str
    replaced: bool


class _Image(TypedDict):
    media_type: str


class Image(_Image, total=False):
    blob: str
    data: str


class InstructionFile(TypedDict):
    name: str
    text: str


class Kept(TypedDict, total=False):
    lines: int
    truncated: bool


class KilledList(TypedDict):
    calls: list[RunningCall]


class _Lane(TypedDict):
    hash: str
    lane: str
    oldest_ms: int
    pool: str
    running: list[RunningCall]
    state: str
    waiting: int


class Lane(_Lane, total=False):
    delayed: int
    held_ms: int
    holder: str
    silent_ms: int
    wait: Wait
    waits_for: str


class _LaneCalls(TypedDict):
    calls: list[Call]
    hash: str
    lane: str
    left_out: int
    oldest_ms: int
    pool: str
    running: list[RunningCall]
    state: str
    waiting: int


class LaneCalls(_LaneCalls, total=False):
    delayed: int
    held_ms: int
    holder: str
    silent_ms: int
    wait: Wait
    waits_for: str


class LaneList(TypedDict):
    incomplete: bool
    lanes: list[Lane]
    left_out: int


class Limit(TypedDict, total=False):
    burst: int
    concurrent: int
    lane: str
    pool: str
    rate: str
    sessions: int
    stored: int
    tenant: str
    tokens: str
    waiting: int
    weight: int


class LimitList(TypedDict):
    limits: list[Limit]


class Limits(TypedDict, total=False):
    cpu_ms: int
    disk_bytes: int
    file_size_bytes: int
    memory_bytes: int
    open_files: int
    output_bytes: int
    processes: int
    wall_ms: int


class _LoggedCall(TypedDict):
    accepted_at: str
    call_id: str
    finished_at: str
    run_ms: float
    session_id: str
    status: str
    tool: str
    waits: CallWaits


class LoggedCall(_LoggedCall, total=False):
    attempt: int
    checkpoint: int
    error: Error
    exit: str
    index: int
    input: str
    lane: str
    level: str
    output: str
    owner: str
    resources: list[Use]
    sandbox_ms: float
    started_at: str
    step: int
    store_ms: float
    tenant: str
    turn: int
    worker_id: str


class Lost(TypedDict):
    reason: str


class MadeToken(TypedDict):
    created: str
    expires: str
    id: str
    name: str
    role: str
    tenant: str
    token: str
    """What the client sends. It is stored nowhere, and not shown again."""


class MergeSessionRequest(TypedDict):
    fork: str
    """Id of the fork."""


class _Merged(TypedDict):
    checkpoint: int


class Merged(_Merged, total=False):
    answer: str
    commits: bool
    conflicts: list[str]
    merged: list[str]
    protected: list[str]
    removed: list[str]
    theirs: list[str]
    written: list[str]


class _Need(TypedDict):
    kind: str


class Need(_Need, total=False):
    disk: str
    handler: bool
    level: str
    model: str


class _NewSchedule(TypedDict):
    cron: str
    """The five fields of crontab, @hourly, @daily, @weekly, @monthly, @yearly or @every 10m."""
    name: str
    """1 to 64 letters, digits, '-' and '_'."""


class NewSchedule(_NewSchedule, total=False):
    call: CallRequest
    """The call."""
    missed: Literal['once', 'skip', 'all']
    """What becomes of times at which no coordinator ran. Default: once."""
    session_id: str
    """Session of every turn or call. Default: a new one each."""
    time_zone: str
    """Name of the IANA database. Default: UTC."""
    turn: TurnRequest
    """The turn. One of turn and call is required."""


class _NewSession(TypedDict):
    prompt: str
    """What the person says."""


class NewSession(_NewSession, total=False):
    answer_schema: Any
    """JSON Schema of the answer, which then is one JSON value: result.value.answer of the call. Default: any text."""
    attachments: list[Attachment]
    """Images and documents."""
    budget: Spending
    """Bound of the session."""
    max_steps: int
    """Bound of the replies of the model in the turn."""
    max_tokens: int
    """Bound of the tokens of the turn."""
    model: str
    """A model that a coordinator serves. Default: that of the session, else of the coordinator."""
    not_before: str | datetime
    """Time before which the turn does not start."""
    policies: list[Any]
    """Policies in addition to those of the coordinator."""
    priority: Literal['interactive', 'normal', 'batch']
    """Order among the turns of the tenant."""
    session_id: str
    """Id of the session. Default: a new one."""
    system: str
    """System prompt."""
    tenant: str
    """Tenant. Default: that of the token."""
    timeout_ms: int
    """Bound of the turn."""
    toolsets: list[str]
    """Built-in toolsets. Default: core."""


class _NewToken(TypedDict):
    name: str
    """Name of the client. Tokens with one name, role and tenant are one client."""
    role: Literal['read', 'run', 'operate']


class NewToken(_NewToken, total=False):
    expires: str | datetime
    """At most 366 days from now. Default: 90 days."""
    tenant: str
    """Default: the tenant default."""


class _OutputPiece(TypedDict):
    attempt: int
    """Start of the call that wrote it, from 1."""
    call_id: str
    data: str
    """In base64."""
    stream: Literal['stdout', 'stderr']


class OutputPiece(_OutputPiece, total=False):
    gap: bool
    """Something before it was lost, or written before the client followed; the result has it."""


class _Parent(TypedDict):
    call_id: str
    session_id: str


class Parent(_Parent, total=False):
    agent: str


_PartA = TypedDict("_PartA", {'ms': "float", 'reason': "str", 'start_ms': "float"}, total=True)
_PartB = TypedDict("_PartB", {'attempt': "int", 'for': "str", 'open': "bool"}, total=False)


class Part(_PartA, _PartB):
    pass


class _Passage(TypedDict):
    role: str
    score: float
    session_id: str
    text: str
    time: str


class Passage(_Passage, total=False):
    call_id: str
    step: int
    tool: str
    turn: int


class Paused(TypedDict):
    confirmed: bool
    """Its holder has answered."""
    paused: bool


class Place(TypedDict, total=False):
    call_id: str
    """Call after which it is."""
    turn: int
    """Turn at whose end it is."""


class PoolList(TypedDict):
    pools: list[str]


class _Problem(TypedDict):
    code: str
    detail: str
    status: int
    title: str


class Problem(_Problem, total=False):
    errors: list[ErrorDetail]
    """What is wrong with which part of the request."""


class _Question(TypedDict):
    arguments: str
    asked_at: str
    call_id: str
    reason: str
    session_id: str
    tool: str


class Question(_Question, total=False):
    lane: str
    question: AskedQuestion
    rule: str
    scope: str
    source: str


class QuestionList(TypedDict):
    questions: list[Question]


class Reasoning(TypedDict, total=False):
    opaque: Any
    text: str


class _Removed(TypedDict):
    bodies: int
    events: int
    results: int
    workspace: bool


class Removed(_Removed, total=False):
    schedules: list[str]


class ResolveCallRequest(TypedDict):
    call_id: str
    happened: bool


class RestoreSessionRequest(TypedDict):
    call_id: str


class Restored(TypedDict):
    removed: int
    written: int


class ResumedWebhook(TypedDict):
    again: int


class _Retry(TypedDict):
    attempts: int


class Retry(_Retry, total=False):
    codes: list[str]
    max_wait_ms: int
    wait_ms: int


class RevertCall(TypedDict):
    arguments: str
    call: Any
    tool: str


class Roots(TypedDict, total=False):
    read: list[str]
    write: list[str]


class _RunningCall(TypedDict):
    attempt: int
    call_id: str
    running_ms: int
    session_id: str
    tool: str


class RunningCall(_RunningCall, total=False):
    waits: Waits


class _Schedule(TypedDict):
    created: str
    cron: str
    missed: Literal['once', 'skip', 'all']
    name: str
    next: list[str]
    paused: bool
    time_zone: str


class Schedule(_Schedule, total=False):
    last: str
    model: str
    outcome: str
    """How the last turn or call ended."""
    prompt: str
    session_id: str
    tool: str


class ScheduleList(TypedDict):
    left_out: int
    """How many more there are."""
    schedules: list[Schedule]


class _ScratchChange(TypedDict):
    key: str


class ScratchChange(_ScratchChange, total=False):
    value: str


class SendCallsRequest(TypedDict):
    calls: list[BatchedCall]


class SentCall(TypedDict, total=False):
    call_id: str
    problem: Problem
    """Why it was not sent; others may have been."""
    session_id: str


class _Session(TypedDict):
    bodies: int
    body_bytes: int
    journal_bytes: int
    messages: int
    results: int
    session_id: str
    state: str
    steps: int
    tool_calls: int
    turns: int
    updated_at: str
    usage: Usage


class Session(_Session, total=False):
    approval: Question
    by: str
    cost_usd: float
    created_at: str
    disk_bytes: int
    history: list[Turn]
    model: str
    owner: str
    parent: str
    prompt: str
    questions: list[Question]
    stored_turns: list[int]
    tenant: str
    unknown: list[Unknown]
    waits: list[str]
    workspace: str


class SessionList(TypedDict):
    left_out: int
    """How many more there are."""
    sessions: list[Session]


class _Span(TypedDict):
    depth: int
    duration_ms: float
    index: int
    kind: str
    name: str
    parts: list[Part]
    session_id: str
    start_ms: float
    state: str
    step: int
    turn: int


class Span(_Span, total=False):
    about: str
    attempt: int
    call_id: str
    code: str
    cost_usd: float
    lane: str
    level: str
    usage: Usage
    worker_id: str


class Spending(TypedDict, total=False):
    calls: int
    steps: int
    time_ms: int
    tokens: int
    usd: float


class Start(TypedDict):
    at: str
    attempt: int
    worker_id: str


class Template(TypedDict):
    bytes: int
    files: int
    name: str
    time: str


class TemplateList(TypedDict):
    templates: list[Template]


class _Terms(TypedDict):
    tools: list[str] | None


class Terms(_Terms, total=False):
    budget: Spending
    guard: str
    max_steps: int
    max_tokens: int
    min_level: str
    policies: list[Any]
    project: list[InstructionFile]
    system: str


class Token(TypedDict):
    created: str
    expires: str
    id: str
    name: str
    role: str
    tenant: str


class TokenList(TypedDict):
    tokens: list[Token]


class ToolCall(TypedDict):
    arguments: str
    id: str
    name: str


class ToolInfo(TypedDict):
    description: str
    name: str
    parameters: Any
    """JSON Schema of the arguments."""


class ToolList(TypedDict):
    tools: list[ToolInfo]


class Total(TypedDict):
    ms: float
    reason: str
    turn_ms: float


class _Trace(TypedDict):
    duration_ms: float
    session_id: str
    spans: list[Span]
    started_at: str
    state: str
    totals: list[Total]
    turn: int
    usage: Usage


class Trace(_Trace, total=False):
    cost_usd: float
    input: str
    left_out: int
    model: str
    trace_id: str


class Try(TypedDict):
    attempt: int
    error: Error
    run_ms: float
    wait_ms: float


class _Turn(TypedDict):
    input: str
    started_at: str
    state: str
    steps: int
    tool_calls: int
    turn: int


class Turn(_Turn, total=False):
    trace_id: str


class _TurnRequest(TypedDict):
    prompt: str
    """What the person says."""


class TurnRequest(_TurnRequest, total=False):
    answer_schema: Any
    """JSON Schema of the answer, which then is one JSON value: result.value.answer of the call. Default: any text."""
    attachments: list[Attachment]
    """Images and documents."""
    budget: Spending
    """Bound of the session."""
    max_steps: int
    """Bound of the replies of the model in the turn."""
    max_tokens: int
    """Bound of the tokens of the turn."""
    model: str
    """A model that a coordinator serves. Default: that of the session, else of the coordinator."""
    not_before: str | datetime
    """Time before which the turn does not start."""
    policies: list[Any]
    """Policies in addition to those of the coordinator."""
    priority: Literal['interactive', 'normal', 'batch']
    """Order among the turns of the tenant."""
    system: str
    """System prompt."""
    tenant: str
    """Tenant. Default: that of the token."""
    timeout_ms: int
    """Bound of the turn."""
    toolsets: list[str]
    """Built-in toolsets. Default: core."""


class UnfinishedList(TypedDict):
    calls: list[Call]


class _Unknown(TypedDict):
    call_id: str
    tool: str


class Unknown(_Unknown, total=False):
    arguments: str


class _Usage(TypedDict):
    input_tokens: int
    output_tokens: int


class Usage(_Usage, total=False):
    cache_write_tokens: int
    cached_tokens: int
    estimated: bool
    reasoning_tokens: int


class Use(TypedDict):
    access: str
    key: str


class _Wait(TypedDict):
    reason: str


class Wait(_Wait, total=False):
    call_id: str
    limit: str
    pool: str
    session_id: str
    worker_id: str


class Waits(TypedDict, total=False):
    after_call: str
    after_ms: float
    after_session: str
    held_by: str
    held_by_session: str
    lane_ms: float
    limit: str
    limit_ms: float
    lost_ms: float
    lost_worker: str
    not_before_ms: float
    pause_ms: float
    rate_ms: float
    slot_ms: float


class _Webhook(TypedDict):
    created: str
    failed: int
    url: str
    waiting: int
    webhook_id: str


class Webhook(_Webhook, total=False):
    delivered_at: str
    events: list[str]
    last_error: str
    last_error_at: str
    paused: str
    session_id: str
    tenant: str


class WebhookList(TypedDict):
    webhooks: list[Webhook]


class _WebhookRequest(TypedDict):
    url: str
    """Where events are sent: https, or http to a loopback address. A coordinator must list its host (--webhook-host)."""


class WebhookRequest(_WebhookRequest, total=False):
    events: list[Literal['turn.ended', 'call.ended', 'approval.waiting', 'question.waiting']]
    """Events that it gets. Default: all."""
    session_id: str
    """Only session whose events it gets. Default: all of the tenant."""
    tenant: str
    """Tenant whose events it gets; * means all, for the fleet's operator. Default: that of the token."""


class _WebhookTest(TypedDict):
    delivered: bool
    event_id: str


class WebhookTest(_WebhookTest, total=False):
    last_error: str


class Woken(TypedDict):
    missing: bool


class _Worker(TypedDict):
    driver: str
    held_lanes: int
    languages: list[str]
    level: str
    network: str
    pool: str
    read_only: bool
    slots: int
    worker_id: str


class Worker(_Worker, total=False):
    build: str
    draining: bool
    ended: int
    failed: int
    kinds: list[str]
    launcher: str
    limit_kinds: dict[str, str]
    limits: Limits
    models: list[str]
    running: int
    sign_key: str
    started_at: str


class WorkerList(TypedDict):
    workers: list[Worker]


Operation = Literal[
    "add-schedule",
    "add-template",
    "add-token",
    "add-webhook",
    "answer-question",
    "approve-call",
    "cancel-call",
    "cancel-session",
    "compact-session",
    "compare-sessions",
    "export-session",
    "follow-call",
    "follow-session",
    "fork-session",
    "get-archive",
    "get-call",
    "get-call-rates",
    "get-diff",
    "get-lane",
    "get-logged-call",
    "get-session",
    "get-turn-trace",
    "import-session",
    "kill-lane",
    "list-calls",
    "list-changes",
    "list-effects",
    "list-failed-events",
    "list-files",
    "list-lanes",
    "list-limits",
    "list-pools",
    "list-questions",
    "list-schedules",
    "list-session-calls",
    "list-sessions",
    "list-templates",
    "list-tokens",
    "list-tools",
    "list-webhooks",
    "list-workers",
    "merge-session",
    "new-session",
    "pause-lane",
    "pause-schedule",
    "read-file",
    "remove-file",
    "remove-limit",
    "remove-schedule",
    "remove-session",
    "remove-template",
    "remove-token",
    "remove-webhook",
    "resolve-call",
    "restore-session",
    "resume-lane",
    "resume-schedule",
    "resume-webhook",
    "revert-session",
    "search-sessions",
    "send-call",
    "send-calls",
    "send-turn",
    "set-limit",
    "skip-call",
    "test-webhook",
    "unpack-archive",
    "wake-lane",
    "write-file",
]


OPERATIONS: Dict[Operation, Tuple[str, str]] = {
    "add-schedule": ("POST", "/v1/schedules"),
    "add-template": ("POST", "/v1/templates"),
    "add-token": ("POST", "/v1/tokens"),
    "add-webhook": ("POST", "/v1/webhooks"),
    "answer-question": ("POST", "/v1/sessions/{session}/answer"),
    "approve-call": ("POST", "/v1/sessions/{session}/approve"),
    "cancel-call": ("POST", "/v1/calls/{session}/{call}/cancel"),
    "cancel-session": ("POST", "/v1/sessions/{session}/cancel"),
    "compact-session": ("POST", "/v1/sessions/{session}/compact"),
    "compare-sessions": ("GET", "/v1/sessions/{session}/compare"),
    "export-session": ("GET", "/v1/sessions/{session}/export"),
    "follow-call": ("GET", "/v1/calls/{session}/{call}/events"),
    "follow-session": ("GET", "/v1/sessions/{session}/events"),
    "fork-session": ("POST", "/v1/sessions/{session}/fork"),
    "get-archive": ("GET", "/v1/sessions/{session}/archive"),
    "get-call": ("GET", "/v1/calls/{session}/{call}"),
    "get-call-rates": ("GET", "/v1/calls/rates"),
    "get-diff": ("GET", "/v1/sessions/{session}/diff"),
    "get-lane": ("GET", "/v1/lane"),
    "get-logged-call": ("GET", "/v1/calls/{session}/{call}/log"),
    "get-session": ("GET", "/v1/sessions/{session}"),
    "get-turn-trace": ("GET", "/v1/sessions/{session}/turns/{turn}/trace"),
    "import-session": ("POST", "/v1/sessions/{session}/import"),
    "kill-lane": ("POST", "/v1/lane/kill"),
    "list-calls": ("GET", "/v1/calls"),
    "list-changes": ("GET", "/v1/sessions/{session}/changes"),
    "list-effects": ("GET", "/v1/sessions/{session}/effects"),
    "list-failed-events": ("GET", "/v1/webhooks/{webhook}/failed"),
    "list-files": ("GET", "/v1/sessions/{session}/files"),
    "list-lanes": ("GET", "/v1/lanes"),
    "list-limits": ("GET", "/v1/limits"),
    "list-pools": ("GET", "/v1/pools"),
    "list-questions": ("GET", "/v1/questions"),
    "list-schedules": ("GET", "/v1/schedules"),
    "list-session-calls": ("GET", "/v1/sessions/{session}/calls"),
    "list-sessions": ("GET", "/v1/sessions"),
    "list-templates": ("GET", "/v1/templates"),
    "list-tokens": ("GET", "/v1/tokens"),
    "list-tools": ("GET", "/v1/tools"),
    "list-webhooks": ("GET", "/v1/webhooks"),
    "list-workers": ("GET", "/v1/workers"),
    "merge-session": ("POST", "/v1/sessions/{session}/merge"),
    "new-session": ("POST", "/v1/sessions"),
    "pause-lane": ("POST", "/v1/lane/pause"),
    "pause-schedule": ("POST", "/v1/schedules/{name}/pause"),
    "read-file": ("GET", "/v1/sessions/{session}/file"),
    "remove-file": ("DELETE", "/v1/sessions/{session}/file"),
    "remove-limit": ("DELETE", "/v1/limits"),
    "remove-schedule": ("DELETE", "/v1/schedules/{name}"),
    "remove-session": ("DELETE", "/v1/sessions/{session}"),
    "remove-template": ("DELETE", "/v1/templates/{name}"),
    "remove-token": ("DELETE", "/v1/tokens/{token}"),
    "remove-webhook": ("DELETE", "/v1/webhooks/{webhook}"),
    "resolve-call": ("POST", "/v1/sessions/{session}/resolve"),
    "restore-session": ("POST", "/v1/sessions/{session}/restore"),
    "resume-lane": ("POST", "/v1/lane/resume"),
    "resume-schedule": ("POST", "/v1/schedules/{name}/resume"),
    "resume-webhook": ("POST", "/v1/webhooks/{webhook}/resume"),
    "revert-session": ("POST", "/v1/sessions/{session}/revert"),
    "search-sessions": ("GET", "/v1/search"),
    "send-call": ("POST", "/v1/calls"),
    "send-calls": ("POST", "/v1/calls/batch"),
    "send-turn": ("POST", "/v1/sessions/{session}/turns"),
    "set-limit": ("PUT", "/v1/limits"),
    "skip-call": ("POST", "/v1/lane/skip"),
    "test-webhook": ("POST", "/v1/webhooks/{webhook}/test"),
    "unpack-archive": ("PUT", "/v1/sessions/{session}/archive"),
    "wake-lane": ("POST", "/v1/lane/wake"),
    "write-file": ("PUT", "/v1/sessions/{session}/file"),
}
