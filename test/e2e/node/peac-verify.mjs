// Verifies evidence with PEAC's own packages, and with a tree and a graph of this
// file's where they have none. Reads {name: {bundle, key}} as JSON on stdin, the
// key in base64url, and prints {name: what is wrong, or null}.
import { createHash } from 'node:crypto'
import * as C from '@peac/crypto'
import * as K from '@peac/kernel'
import * as S from '@peac/schema'

const WORKFLOW = 'org.peacprotocol/workflow'
const CORRELATION = 'org.peacprotocol/correlation'
const ACTION = 'org.peacprotocol/agent-action'
const HANDOFF = 'org.peacprotocol/a2a-handoff'
const SUMMARY = 'dev.wopproxy/workflow-summary'

function must(ok, what) {
  if (!ok) throw new Error(what)
}

async function verifyReceipt(jws, key) {
  const { header, payload, valid } = await C.verify(jws, key)
  must(valid, 'signature')
  must(header.typ === 'interaction-record+jwt' && header.kid === '2026-11', 'header')
  must(S.validateKernelConstraints(payload).valid, 'kernel constraints')
  const claims = S.Wire02ClaimsSchema.safeParse(payload)
  must(claims.success, `claims: ${claims.error?.issues[0]?.message}`)
  must(S.checkOccurredAtSkew(payload.occurred_at, payload.iat, payload.iat) === null, 'occurred_at')
  const groups = payload.extensions ?? {}
  const map = K.TYPE_TO_EXTENSION_MAP
  const group = map instanceof Map ? map.get(payload.type) : map[payload.type]
  must(!group || group in groups, `${payload.type} without ${group}`)
  if (CORRELATION in groups) must(S.CorrelationExtensionSchema.safeParse(groups[CORRELATION]).success, 'correlation')
  if (ACTION in groups) must(S.validateAgentActionForType(payload.type, groups[ACTION]).ok, 'agent-action')
  if (HANDOFF in groups) {
    must(S.validateA2AHandoff(groups[HANDOFF]).ok, 'a2a-handoff')
    must(groups[HANDOFF].type === payload.type, 'a handoff of another type')
  }
  return { jws, ref: await S.computeReceiptRef(jws), payload, groups }
}

function context({ groups }) {
  const w = groups[WORKFLOW]
  const verdict = S.validateWorkflowContextOrdered(w)
  must(verdict.valid, verdict.error_code)
  must(groups[CORRELATION]?.workflow_id === w.workflow_id, 'correlation of another workflow')
  return w
}

function unique(values, what) {
  must(new Set(values).size === values.length, `${what} twice`)
}

function checkGraph(receipts, external) {
  unique(receipts.map((r) => r.ref), 'a receipt')
  unique(receipts.map((r) => r.payload.jti), 'an id')
  const steps = new Map()
  for (const r of receipts) {
    r.context = context(r)
    must(r.context.workflow_id === receipts[0].context.workflow_id, 'two workflows')
    steps.set(r.context.step_id, [...(steps.get(r.context.step_id) ?? []), r])
  }
  const state = new Map()
  const visit = (id) => {
    must(state.get(id) !== 'open', 'a cycle')
    if (state.has(id)) return
    state.set(id, 'open')
    for (const r of steps.get(id)) {
      for (const p of r.context.parent_step_ids) {
        if (steps.has(p)) visit(p)
        else must(external.includes(p), 'a parent that is not there')
      }
    }
    state.set(id, 'done')
  }
  for (const [id, links] of steps) {
    visit(id)
    const previous = links.map((r) => r.context.prev_receipt_hash)
    unique(previous, 'a predecessor')
    const refs = links.map((r) => r.ref)
    must(previous.filter((p) => !refs.includes(p)).length === 1, 'no single chain')
    must(previous.every((p) => !p || receipts.some((r) => r.ref === p)), 'a link to nothing')
  }
  return steps
}

const hash = (...parts) => createHash('sha256').update(Buffer.concat(parts)).digest()

// The tree from its leaves up: levels of pairs, a node without a pair moves up.
function merkleRoot(refs) {
  let level = refs
    .map((r) => Buffer.from(r.slice('sha256:'.length), 'hex'))
    .sort(Buffer.compare)
    .map((d) => hash(Buffer.of(0), d))
  while (level.length > 1) {
    const next = []
    for (let i = 0; i < level.length; i += 2) {
      next.push(i + 1 < level.length ? hash(Buffer.of(1), level[i], level[i + 1]) : level[i])
    }
    level = next
  }
  return `sha256:${level[0].toString('hex')}`
}

function checkSummary({ payload, groups }, receipts, steps) {
  must(payload.type === SUMMARY, 'no summary')
  const summary = groups[SUMMARY]
  must(S.WorkflowSummaryAttestationSchema.safeParse(summary).success, 'summary')
  must(summary.issuer === payload.iss, 'a summary of another issuer')
  const { evidence } = summary
  must(evidence.workflow_id === receipts[0].context.workflow_id, 'a summary of another workflow')
  must(evidence.receipt_count === receipts.length, 'the count')
  must(evidence.receipt_merkle_root === merkleRoot(receipts.map((r) => r.ref)), 'the root')
  must(!evidence.error_context || steps.has(evidence.error_context.failed_step_id), 'the failed step')
}

async function verifyBundle({ bundle, key }) {
  const bytes = new Uint8Array(Buffer.from(key, 'base64url'))
  const receipts = []
  for (const jws of bundle.receipts) receipts.push(await verifyReceipt(jws, bytes))
  must(receipts.every((r) => r.payload.iss === bundle.issuer), 'another issuer')
  const steps = checkGraph(receipts, bundle.external_step_ids ?? [])
  checkSummary(await verifyReceipt(bundle.summary, bytes), receipts, steps)
}

let text = ''
for await (const chunk of process.stdin) text += chunk
const verdicts = {}
for (const [name, input] of Object.entries(JSON.parse(text))) {
  try {
    await verifyBundle(input)
    verdicts[name] = null
  } catch (e) {
    verdicts[name] = `${e.code ?? ''} ${e.message}`.trim()
  }
}
console.log(JSON.stringify(verdicts))
