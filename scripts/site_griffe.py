"""What griffe does not see by itself: examples, and methods that an object forwards to one of its parts."""

import re

import griffe


class Examples(griffe.Extension):
    """Reads `Example:` in a docstring as the section `Examples:`, whose prompts are code."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


class ForwardedMethods(griffe.Extension):
    """Shows `save = Forwarded("_part", Part.save)` in a class as the method that it stands for."""

    def on_class_members(self, *, cls, **kwargs):
        for name, member in list(cls.members.items()):
            value = getattr(member, "value", None) if not member.is_alias else None
            if isinstance(value, griffe.ExprCall) and str(value.function) == "Forwarded":
                cls.set_member(name, griffe.Alias(name, value.arguments[1].canonical_path, parent=cls))
