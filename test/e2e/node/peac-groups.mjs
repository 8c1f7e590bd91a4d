// Has PEAC's own validators judge what was observed. Reads [{Type, Group, Value}] as
// JSON on stdin, and prints the codes that each gives, none where it holds.
import * as S from '@peac/schema'

const validate = {
  [S.AGENT_ACTION_EXTENSION_KEY]: S.validateAgentActionForType,
  [S.A2A_HANDOFF_EXTENSION_KEY]: (type, value) => S.validateA2AHandoff(value),
}

let text = ''
for await (const chunk of process.stdin) text += chunk
const codes = JSON.parse(text).map(({ Type, Group, Value }) => {
  const verdict = validate[Group](Type, Value)
  return verdict.ok ? [] : verdict.errors.map((e) => e.code)
})
console.log(JSON.stringify(codes))
