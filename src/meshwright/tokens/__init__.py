"""Tokenizers in Hugging Face's folders: chats by their own templates, and new tokenizers.

`_folder` reads the files of a folder, `_known_keys` checks their configs, `_template` renders a chat in
Jinja's sandbox, `_spans` finds the assistant's parts, `_chat` makes tokens and weights of both, and `_train`
trains tokenizers. May import ground rooms only, and not JAX. `tokenizers` and `jinja2` are loaded where they
are used.
"""

from meshwright.tokens._chat import Chat, Encoded, chat
from meshwright.tokens._folder import end_tokens
from meshwright.tokens._known_keys import check_keys
from meshwright.tokens._train import KINDS, train_tokenizer

__all__ = ["KINDS", "Chat", "Encoded", "chat", "check_keys", "end_tokens", "train_tokenizer"]
